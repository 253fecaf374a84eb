"""The lines that measure.py wrote, as a table: a row for each shape, dtype and peer.

Ratio    of the times of the two runs that stand beside each other, theirs over ours: the median over the rounds.
Memory   of each side the largest peak of its runs.
"""
import json
import platform
import statistics
import sys
from importlib.metadata import version


def processor():
    with open("/proc/cpuinfo") as lines:
        for line in lines:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"


def pairs(runs):
    """(ours, theirs) of neighbouring lines, by (shape, dtype, peer). A pair with an error, or of two models, is none."""
    found, refused = {}, []
    for ours, theirs in zip(runs[::2], runs[1::2]):
        name = (theirs["shape"], theirs["dtype"], theirs["peer"])
        wrong = ours.get("error") or theirs.get("error")
        if not wrong and ours["parameters"] != theirs["parameters"]:
            wrong = f"{ours['parameters']} parameters beside {theirs['parameters']}"
        if wrong:
            refused.append(f"{' '.join(name)}, round {theirs['round']}: {wrong}")
        else:
            found.setdefault(name, []).append((ours, theirs))
    return found, refused


def main(path):
    with open(path) as lines:
        runs = [json.loads(line) for line in lines]
    found, refused = pairs(runs)
    print(f"{processor()}; torch {version('torch')}, transformers {version('transformers')}\n")
    print("| shape | dtype | beside | ours, ms | theirs, ms | times as fast | ours, MiB | theirs, MiB | memory |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for (shape, dtype, peer), both in found.items():
        ours, theirs = (statistics.median(run["ms"] for run in side) for side in zip(*both))
        ratio = statistics.median(t["ms"] / o["ms"] for o, t in both)
        our_peak, their_peak = (max(run["peak_MiB"] for run in side) for side in zip(*both))
        print(f"| {shape} | {dtype} | {peer} | {ours:.1f} | {theirs:.1f} | {ratio:.2f} | {our_peak} | {their_peak} | "
              f"{100 * our_peak / their_peak:.0f} % |")
    for line in refused:
        print("does not count: " + line, file=sys.stderr)
    return 1 if refused or not found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
