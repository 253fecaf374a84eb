"""Runs one side of one job, samples its memory, and adds a line of JSON to --out.

Command  what stands behind "--"; it writes --metrics, a line of JSON a step: "step", "loss", and "tokens_per_second".
         Its standard output names the number of parameters ("of N parameters").
Time     the median of the steps after the first, in ms.
Memory   the peak of the sum of PSS over all processes of the command's session, ten samples a second: a page that several
         processes share counts once.
Checks   the command ends with 0, and the last loss is below the first. Else exit status 1, and the line has "error".
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time


def arguments():
    parser = argparse.ArgumentParser()
    for name in ("out", "peer", "shape", "dtype", "metrics"):
        parser.add_argument("--" + name, required=True)
    parser.add_argument("--round", type=int, required=True)
    parser.add_argument("--tokens", type=int, required=True, help="of a step")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    return parser.parse_args()


def pss_kib(session):
    total = 0
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat") as stat:
                if int(stat.read().rsplit(")", 1)[1].split()[3]) != session:
                    continue
            with open(f"/proc/{entry}/smaps_rollup") as rollup:
                total += sum(int(line.split()[1]) for line in rollup if line.startswith("Pss:"))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            pass  # it has ended
    return total


def run(command, log):
    # Another library's tuning must not decide for either side.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OPENBLAS_")}
    process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True, env=environment)
    peak = 0
    while process.poll() is None:
        peak = max(peak, pss_kib(process.pid))
        time.sleep(0.1)
    return process.returncode, peak


def judge(args, status, text):
    """What the run gave, or {"error": ...}."""
    if status != 0:
        return {"error": f"ended with {status}: " + " ".join(text.split()[-60:])}
    named = re.search(r"of (\d+) parameters", text)
    with open(args.metrics) as lines:
        steps = [json.loads(line) for line in lines]
    if named is None or len(steps) < 2:
        return {"error": "named no number of parameters, or made fewer than 2 steps"}
    first, last = steps[0]["loss"], steps[-1]["loss"]
    found = {"parameters": int(named[1]), "first_loss": round(first, 4), "last_loss": round(last, 4)}
    if not last < first:
        return {**found, "error": f"the loss does not fall: {first:.4f}, then {last:.4f}"}
    ms = [args.tokens / step["tokens_per_second"] * 1e3 for step in steps[1:]]
    return {**found, "ms": round(statistics.median(ms), 2), "steps": len(ms)}


def main():
    args = arguments()
    with tempfile.TemporaryFile("w+") as log:
        status, peak = run(args.command[1:], log)
        log.seek(0)
        result = judge(args, status, log.read())
    line = {"peer": args.peer, "shape": args.shape, "dtype": args.dtype, "round": args.round, **result,
            "peak_MiB": peak // 1024}
    with open(args.out, "a") as out:
        out.write(json.dumps(line) + "\n")
    print(json.dumps(line), file=sys.stderr)
    return 1 if "error" in result else 0


if __name__ == "__main__":
    sys.exit(main())
