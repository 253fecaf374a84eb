"""Compares the rows that we read of parquet files with pyarrow's: python parquet_reads.py RECORD_ROWS FILE.parquet..."""
import json
import subprocess
import sys

import pyarrow.parquet as pq


def main(program, files):
    different = rows = 0
    for file in files:
        run = subprocess.run([program, file], capture_output=True, text=True)
        if run.returncode != 0:
            print(run.stderr.strip())
            different += 1
            continue
        ours = [json.loads(line) for line in run.stdout.split("\n")[:-1]]
        theirs = pq.read_table(file).to_pylist()
        rows += len(theirs)
        if ours != theirs:
            differing = [i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b]
            print(f"{file}: {len(ours)} rows, pyarrow {len(theirs)}; the first that differs: {differing[:1]}")
            different += 1
    print(f"{len(files)} files, {rows} rows: {different} files differ")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
