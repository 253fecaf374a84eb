"""Compares decoded and resized pictures with Pillow's, byte for byte: random pictures of all modes, filters and sizes.

python images_agree.py PROGRAM [--pictures N] [--damaged N] [--speed]        needs: pip install pillow numpy

PROGRAM is build/release/tests/interop/image_bytes. Ends with 1 when a byte differs, or when one side refuses a good file.
--damaged N  damages N files at random places and counts which side reads them.
--speed      times both beside each other on one core, by processor time; with torchvision too where it is installed.
"""

import argparse
import os
import struct
import subprocess
import sys
import tempfile
import time
import warnings
import zlib

import numpy as np
import PIL
from PIL import Image, ImageFile, features

warnings.simplefilter("ignore")
ImageFile.MAXBLOCK = 1 << 22  # optimised JPEG is written in one block
FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
}


def picture(rng, width, height, channels):
    """Noise, a slope, or hard edges."""
    kind = rng.integers(3)
    if kind == 0:
        return rng.integers(0, 256, (height, width, channels), dtype=np.uint8)
    y, x = np.mgrid[0:height, 0:width]
    if kind == 1:
        planes = [x * rng.uniform(0, 3) + y * rng.uniform(0, 3) + rng.integers(256) for _ in range(channels)]
    else:
        planes = [255 * ((x // rng.integers(1, 9) + y // rng.integers(1, 9)) % 2) for _ in range(channels)]
    return np.stack(planes, -1).astype(np.int64).astype(np.uint8)


def chunk(name, data):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(width, height, bits, color, rows, interlace=0):
    head = struct.pack(">IIBBBBB", width, height, bits, color, 0, 0, interlace)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def deep_png(rng, width, height):
    """16 bits a sample, which Pillow does not write: RGB, RGBA or grey with alpha."""
    color, channels = [(2, 3), (6, 4), (4, 2)][rng.integers(3)]
    rows = rng.integers(0, 256, (height, width * channels * 2), dtype=np.uint8)
    return png(width, height, 16, color, b"".join(b"\0" + row.tobytes() for row in rows))


def interlaced_png(rng, width, height):
    """Adam7, which Pillow does not write: grey, RGB or RGBA."""
    color, channels = [(0, 1), (2, 3), (6, 4)][rng.integers(3)]
    array = picture(rng, width, height, channels)
    rows = b""
    for x0, y0, dx, dy in [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]:
        part = array[y0::dy, x0::dx]
        if part.shape[1]:
            rows += b"".join(b"\0" + row.tobytes() for row in part)
    return png(width, height, 8, color, rows, 1)


def save(rng, path, width, height):
    """Writes one picture of a random kind; returns the kind."""
    kinds = ["png 1", "png L", "png P", "png P tRNS", "png LA", "png RGB", "png RGBA", "png 16", "png Adam7", "jpeg L"]
    kinds += ["jpeg RGB", "jpeg RGB", "jpeg RGB", "jpeg CMYK", "ppm L", "ppm RGB"]
    kind = kinds[rng.integers(len(kinds))]
    form, mode = kind.split(" ", 1)
    rgb = Image.fromarray(picture(rng, width, height, 3))
    if kind in ("png 16", "png Adam7"):
        with open(path, "wb") as stream:
            stream.write((deep_png if kind == "png 16" else interlaced_png)(rng, width, height))
        return kind
    if mode.startswith("P"):
        image = rgb.quantize(int(rng.integers(2, 257)))
        image.save(path, form, **({"transparency": 0} if mode == "P tRNS" else {}))
        return kind
    if mode in ("LA", "RGBA"):
        image = Image.fromarray(picture(rng, width, height, len(mode)), mode)
    else:
        image = rgb.convert(mode)
    options = {}
    if form == "jpeg":
        options = {"quality": int(rng.integers(1, 101)), "progressive": bool(rng.integers(2)), "optimize": bool(rng.integers(2))}
        if mode == "RGB":
            options["subsampling"] = int(rng.integers(3))
        if rng.integers(4) == 0:
            options["restart_marker_blocks"] = int(rng.integers(1, 9))
        kind += f" {'progressive' if options['progressive'] else 'baseline'}"
    image.save(path, form, **options)
    return kind


def theirs(path, name="none", size=(0, 0)):
    """The RGB bytes of Pillow; nothing where it refuses the file."""
    try:
        with Image.open(path) as image:
            rgb = image.convert("RGB")
            return rgb if name == "none" else rgb.resize(size, FILTERS[name])
    except Exception:  # Pillow raises a dozen types
        return None


def ours(program, folder, jobs):
    """Sizes and bytes of each job (filter, width, height, path)."""
    job_file, out = os.path.join(folder, "jobs"), os.path.join(folder, "out")
    with open(job_file, "w") as stream:
        stream.writelines(f"{name} {width} {height} {path}\n" for name, width, height, path in jobs)
    printed = subprocess.run([program, job_file, out], check=True, capture_output=True, text=True).stdout
    with open(out, "rb") as stream:
        data = stream.read()
    results, at = [], 0
    for _ in jobs:
        width, height = struct.unpack_from("<qq", data, at)
        at += 16
        results.append(((width, height), data[at : at + 3 * width * height]))
        at += 3 * width * height
    return results, printed.splitlines()


def compare(program, pictures, rng):
    counts, wrong = {}, 0
    with tempfile.TemporaryDirectory() as folder:
        jobs, kinds = [], []
        for i in range(pictures):
            path = os.path.join(folder, f"{i}")
            most = 40 if i % 2 else 400
            kind = save(rng, path, int(rng.integers(1, most)), int(rng.integers(1, most)))
            for name in ["none", *FILTERS]:
                jobs.append((name, int(rng.integers(1, most)), int(rng.integers(1, most)), path))
                kinds.append(kind if name == "none" else f"resize {name}")
        results, printed = ours(program, folder, jobs)
        for (name, width, height, path), kind, (size, data) in zip(jobs, kinds, results):
            image = theirs(path, name, (width, height))
            equal = image is not None and image.size == size and image.tobytes() == data
            good, all_ = counts.get(kind, (0, 0))
            counts[kind] = (good + equal, all_ + 1)
            if not equal and wrong < 5:
                ours_, theirs_ = np.frombuffer(data, np.uint8), np.frombuffer(image.tobytes() if image else b"", np.uint8)
                steps = np.abs(ours_.astype(int) - theirs_) if ours_.size == theirs_.size else "sizes differ"
                print(f"differs: {kind} {path} {size}: {steps if isinstance(steps, str) else steps.max()}")
            wrong += not equal
        print("\n".join(printed[:5]), end="\n" if printed else "")
    for kind, (good, all_) in sorted(counts.items()):
        print(f"{kind}: {good} of {all_} equal")
    print(f"{wrong} of {sum(n for _, n in counts.values())} differ")
    return wrong


def damaged(program, count, rng):
    with tempfile.TemporaryDirectory() as folder:
        jobs = []
        for i in range(count):
            path = os.path.join(folder, f"{i}")
            save(rng, path, int(rng.integers(1, 60)), int(rng.integers(1, 60)))
            with open(path, "rb") as stream:
                data = bytearray(stream.read())
            if rng.integers(3) == 0:
                del data[int(rng.integers(len(data))) :]
            else:
                data[int(rng.integers(len(data)))] = int(rng.integers(256))
            with open(path, "wb") as stream:
                stream.write(data)
            jobs.append(("none", 0, 0, path))
        results, printed = ours(program, folder, jobs)
        table = {}
        for (*_, path), (size, data) in zip(jobs, results):
            image = theirs(path)
            if image is not None and size != (0, 0):
                outcome = "both read, equal" if image.size == size and image.tobytes() == data else "both read, DIFFERENT"
            else:
                outcome = {(False, False): "both refuse", (True, False): "only Pillow reads", (False, True): "only we read"}[
                    (image is not None, size != (0, 0))
                ]
            table[outcome] = table.get(outcome, 0) + 1
        print(f"{count} damaged files: {table}")


def least_seconds(work):
    least = float("inf")
    for _ in range(5):
        begin = time.process_time()
        work()
        least = min(least, time.process_time() - begin)
    return least


def natural(rng, width, height):
    """Smooth shapes with some noise: about the bytes of a photo."""
    small = Image.fromarray(rng.integers(0, 256, (height // 24, width // 24, 3), dtype=np.uint8))
    array = np.asarray(small.resize((width, height), Image.Resampling.BICUBIC)).astype(int)
    return Image.fromarray(np.clip(array + rng.normal(0, 3, array.shape), 0, 255).astype(np.uint8))


def read_tensors(paths):
    import torchvision.io as io

    for path in paths:
        io.decode_image(path, io.ImageReadMode.RGB)


def speed(program, rng):
    size = (1024, 768)
    with tempfile.TemporaryDirectory() as folder:
        for form, options in [("jpeg", {"quality": 90}), ("jpeg", {"quality": 90, "progressive": True}), ("png", {})]:
            paths = [os.path.join(folder, f"{form}{len(options)}{i}") for i in range(12)]
            for path in paths:
                natural(rng, *size).save(path, form, **options)
            megabytes = 3 * size[0] * size[1] * len(paths) / 1e6
            mine = float(subprocess.run([program, "--speed", *paths], check=True, capture_output=True, text=True).stdout.split()[0])
            pil = least_seconds(lambda: [Image.open(path).convert("RGB").tobytes() for path in paths])
            arrays = least_seconds(lambda: [np.asarray(Image.open(path).convert("RGB")) for path in paths])
            line = f"{form} {options}: pictures/s ours {len(paths) / mine:.1f}, Pillow {len(paths) / pil:.1f}"
            line += f" (as an array {len(paths) / arrays:.1f}); MB/s {megabytes / mine:.0f}; {pil / mine:.2f} times Pillow"
            try:
                import torch

                torch.set_num_threads(1)
                tensors = least_seconds(lambda: read_tensors(paths))
                line += f"; torchvision {len(paths) / tensors:.1f}, {tensors / mine:.2f} times"
            except (ImportError, RuntimeError) as error:
                line += f"; no torchvision ({error})"
            print(line)
        for width, height in [(448, 448), (1204, 812)]:
            images = [Image.open(path).convert("RGB") for path in paths]
            words = [program, "--speed-resize", str(width), str(height), *paths]
            mine = float(subprocess.run(words, check=True, capture_output=True, text=True).stdout.split()[0])
            pil = least_seconds(lambda: [image.resize((width, height), Image.Resampling.BICUBIC) for image in images])
            print(f"bicubic {size} to {(width, height)}: pictures/s ours {len(paths) / mine:.1f}, Pillow {len(paths) / pil:.1f}; {pil / mine:.2f} times")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--pictures", type=int, default=500)
    parser.add_argument("--damaged", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--speed", action="store_true")
    args = parser.parse_args()
    rng = np.random.default_rng(args.seed)
    print(f"Pillow {PIL.__version__}, libjpeg-turbo {features.version('libjpeg_turbo')}, zlib {features.version('zlib')}")
    if args.speed:
        speed(args.program, rng)
        return 0
    wrong = compare(args.program, args.pictures, rng)
    if args.damaged:
        damaged(args.program, args.damaged, rng)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
