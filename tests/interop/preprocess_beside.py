"""Times `shardloom preprocess` beside Hugging Face's library, from a jsonl file to a pair .bin/.idx, 2 workers each.

python preprocess_beside.py PROGRAM JSONL TOKENIZER [ROUNDS]        needs: pip install tokenizers numpy

PROGRAM is build/release/shardloom, JSONL a file of records with a column `text`, TOKENIZER a Hugging Face
folder. The peer reads lines with json, encodes 1000 at a time with encode_batch_fast on 2 threads, and writes numpy
arrays. Both run as processes of their own, one after the other, ROUNDS times (3); times are those of whole processes, by
the clock and of the processor. Ends with 1 where the files differ.
"""

import filecmp
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time

WORKERS = 2
BATCH = 1000


def peer(jsonl: str, folder: str, prefix: str) -> None:
    import numpy as np
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    lengths, batch = [], []

    def write(out) -> None:
        for encoding in tokenizer.encode_batch_fast(batch):
            ids = np.array(encoding.ids, dtype=np.int32)
            lengths.append(len(ids))
            out.write(ids.tobytes())
        batch.clear()

    with open(jsonl, encoding="utf-8") as lines, open(prefix + ".bin", "wb") as out:
        for line in lines:
            batch.append(json.loads(line)["text"])
            if len(batch) == BATCH:
                write(out)
        write(out)
    count = len(lengths)
    sizes = np.array(lengths, dtype=np.int32)
    offsets = np.concatenate([[0], np.cumsum(sizes[:-1], dtype=np.int64) * 4]).astype(np.int64)
    with open(prefix + ".idx", "wb") as out:
        out.write(b"MMIDIDX\0\0" + np.uint64(1).tobytes() + np.uint8(4).tobytes())
        out.write(np.uint64(count).tobytes() + np.uint64(count + 1).tobytes())
        out.write(sizes.tobytes() + offsets.tobytes() + np.arange(count + 1, dtype=np.int64).tobytes())


def processor_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def seconds_of(words: list[str]) -> tuple[float, float]:
    environment = {**os.environ, "RAYON_NUM_THREADS": str(WORKERS), "TOKENIZERS_PARALLELISM": "true"}
    begin, begin_processor = time.perf_counter(), processor_seconds()
    subprocess.run(words, check=True, env=environment, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin, processor_seconds() - begin_processor


def main() -> int:
    if len(sys.argv) == 5 and sys.argv[1] == "peer":
        peer(*sys.argv[2:])
        return 0
    if len(sys.argv) not in (4, 5):
        print(__doc__, file=sys.stderr)
        return 2
    program, jsonl, tokenizer = sys.argv[1:4]
    size = os.path.getsize(jsonl)
    ratios, processor_ratios = [], []
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = os.path.join(folder, "ours"), os.path.join(folder, "theirs")
        our_words = [program, "preprocess", "--input", jsonl, "--tokenizer-name-or-path", tokenizer]
        our_words += ["--output-prefix", ours, "--workers", str(WORKERS)]
        for _ in range(int(sys.argv[4]) if len(sys.argv) == 5 else 3):
            our_time = seconds_of(our_words)
            their_time = seconds_of([sys.executable, __file__, "peer", jsonl, tokenizer, theirs])
            same = all(filecmp.cmp(ours + "_text_document" + end, theirs + end, False) for end in (".bin", ".idx"))
            ratios.append(their_time[0] / our_time[0])
            processor_ratios.append(their_time[1] / our_time[1])
            speeds = [f"{size / 1e6 / seconds:.2f}" for seconds in (*our_time, *their_time)]
            print(
                f"MB/s, by the clock and of processor time: ours {speeds[0]}, {speeds[1]}; peer {speeds[2]}, {speeds[3]}; "
                f"ratios {ratios[-1]:.2f}, {processor_ratios[-1]:.2f}; files {'equal' if same else 'DIFFERENT'}",
                flush=True,
            )
            if not same:
                return 1
    print(f"median ratios {statistics.median(ratios):.2f}, {statistics.median(processor_ratios):.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
