"""Measures single kernels with PyTorch and writes what `shardloom calibrate --kernel-times` reads (docs/calibration.md).

usage: python3 measure_kernel_times.py --out times.json [--device cuda|npu|cpu] [--small]

Kernels  products of a linear layer and its two gradients at shapes of models from 1 to 70 billion parameters, causal attention
         forward and backward, copies and casts on the device, copies from and to the host. bf16.
Time     the median of --repeat runs after --warmup, each between two events on an idle device; on the CPU by the clock.
Small    sizes for a device of little memory, and for the CPU, where it is the default.
"""
import argparse
import json
import statistics
import time

import torch
import torch.nn.functional as F

HIDDEN = [(1024, 1024), (4096, 1024), (2048, 2048), (8192, 2048), (4096, 4096), (14336, 4096), (4096, 14336), (32000, 1024),
          (128256, 4096), (1024, 4096)]
ROWS = [128, 512, 2048, 4096, 8192, 16384]
WITH_GRADIENTS = [2048, 8192]
ATTENTION = [(1, 16, 8, 2048, 64), (1, 32, 8, 4096, 64), (1, 32, 8, 4096, 128), (1, 32, 8, 8192, 128), (4, 32, 8, 2048, 128),
             (1, 48, 8, 4096, 128)]
ELEMENTS = [1 << 20, 1 << 24, 1 << 28]


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--device", default="cuda", choices=("cuda", "npu", "cpu"))
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--repeat", type=int, default=20)
    return parser.parse_args()


class Timer:
    """Milliseconds of one call on an idle device."""

    def __init__(self, device, warmup, repeat):
        self.device, self.warmup, self.repeat = device, warmup, repeat
        self.library = {"cuda": "cuda", "npu": "npu"}.get(device)

    def once(self, work):
        if self.library is None:
            begin = time.perf_counter()
            work()
            return 1e3 * (time.perf_counter() - begin)
        library = getattr(torch, self.library)
        begin, end = library.Event(enable_timing=True), library.Event(enable_timing=True)
        library.synchronize()
        begin.record()
        work()
        end.record()
        library.synchronize()
        return begin.elapsed_time(end)

    def __call__(self, work):
        for _ in range(self.warmup):
            self.once(work)
        return statistics.median(self.once(work) for _ in range(self.repeat))


def products(timer, device, rows, hidden, with_gradients):
    for m in rows:
        for n, k in hidden:
            x = torch.randn(m, k, device=device, dtype=torch.bfloat16)
            weight = torch.randn(n, k, device=device, dtype=torch.bfloat16)
            sizes = {"M": m, "N": n, "K": k}
            flops = 2.0 * m * n * k
            yield "matmul_nt", sizes, flops, timer(lambda: torch.matmul(x, weight.t()))
            if m not in with_gradients:
                continue
            dy = torch.randn(m, n, device=device, dtype=torch.bfloat16)
            yield "matmul_nn_dx", sizes, flops, timer(lambda: torch.matmul(dy, weight))
            yield "matmul_tn_dw", sizes, flops, timer(lambda: torch.matmul(dy.t(), x))


def attention(timer, device, shapes):
    for b, h, kv, t, d in shapes:
        def heads(count):
            return torch.randn(b, count, t, d, device=device, dtype=torch.bfloat16, requires_grad=True)

        q, k, v = heads(h), heads(kv), heads(kv)
        sizes = {"B": b, "H": h, "KV": kv, "T": t, "D": d}
        flops = 2.0 * b * h * t * t * d  # causal: half the square

        def forward():
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=kv != h)

        with torch.no_grad():
            yield "sdpa_causal_fwd", sizes, flops, timer(forward)
        y = forward()
        dy = torch.randn_like(y)
        yield "sdpa_causal_bwd", sizes, 2.5 * flops, timer(
            lambda: torch.autograd.grad(y, (q, k, v), dy, retain_graph=True))


def copies(timer, device, elements):
    for n in elements:
        source = torch.zeros(n, device=device, dtype=torch.bfloat16)
        same, wide = torch.empty_like(source), torch.empty(n, device=device, dtype=torch.float32)
        yield "copy_bf16", {"n": n}, 4.0 * n, timer(lambda: same.copy_(source))
        yield "cast_bf16_fp32", {"n": n}, 6.0 * n, timer(lambda: wide.copy_(source))


def host_copies(timer, device, n):
    there = torch.zeros(n, device=device, dtype=torch.uint8)
    for word in ("pinned", "pageable"):
        here = torch.zeros(n, dtype=torch.uint8)
        if word == "pinned":
            here = here.pin_memory()
        yield "h2d_" + word, {"n": n}, float(n), timer(lambda: there.copy_(here, non_blocking=word == "pinned"))
        yield "d2h_" + word, {"n": n}, float(n), timer(lambda: here.copy_(there, non_blocking=word == "pinned"))


def main():
    args = arguments()
    if args.device == "npu":
        import torch_npu  # noqa: F401, adds torch.npu
    on_cpu = args.device == "cpu"
    small = args.small or on_cpu
    timer = Timer(args.device, args.warmup, args.repeat)
    rows = []

    def add(measured, rate):
        for op, sizes, work, ms in measured:
            rows.append({"op": op, **sizes, "ms": ms, rate: work / ms / (1e9 if rate == "tflops" else 1e6)})

    torch.manual_seed(1)
    add(products(timer, args.device, [128] if small else ROWS, HIDDEN[:3] if small else HIDDEN,
                 [128] if small else WITH_GRADIENTS), "tflops")
    add(attention(timer, args.device, [(1, 4, 2, 256, 64)] if small else ATTENTION), "tflops")
    add(copies(timer, args.device, ELEMENTS[:2] if small else ELEMENTS), "gbps")
    if not on_cpu:
        add(host_copies(timer, args.device, ELEMENTS[1] if small else ELEMENTS[2]), "gbps")
    with open(args.out, "w") as out:
        json.dump(rows, out, indent=1)
        out.write("\n")
    print(f"{len(rows)} kernels of {args.device}, PyTorch {torch.__version__}: {args.out}")


if __name__ == "__main__":
    main()
