"""PyTorch opens a memory snapshot of ours, and its pickle has the opcodes that PyTorch's viewer reads.

python snapshot_reads.py FILE...        needs: pip install torch
"""

import pickle
import pickletools
import subprocess
import sys

# torch/utils/viz/MemoryViz.js, unpickle()
VIEWER = set(
    "PROTO FRAME STOP MARK EMPTY_DICT DICT SETITEM SETITEMS EMPTY_LIST LIST APPEND APPENDS EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 "
    "TUPLE3 NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 BINFLOAT SHORT_BINUNICODE BINUNICODE BINPUT LONG_BINPUT "
    "BINGET LONG_BINGET MEMOIZE".split()
)
ACTIVE = ("active_allocated", "active_pending_free")


def play_backwards(snapshot: dict) -> None:
    """As the viewer's state view does, from the final blocks."""
    blocks = {}
    for segment in snapshot["segments"]:
        address = segment["address"]
        for block in segment["blocks"]:
            assert block["address"] == address, "a gap between blocks"
            if block["state"] in ACTIVE:
                blocks[address] = block["size"]
            address += block["size"]
        assert address == segment["address"] + segment["total_size"]
    for event in reversed(snapshot["device_traces"][0]):
        if event["action"] == "free_completed":
            assert event["addr"] not in blocks
            blocks[event["addr"]] = event["size"]
        elif event["action"] == "free_requested":
            assert event["addr"] in blocks
        elif event["action"] == "alloc":
            assert blocks.pop(event["addr"]) == event["size"]


def check(file: str) -> None:
    data = open(file, "rb").read()
    others = {op.name for op, _, _ in pickletools.genops(data)} - VIEWER
    assert not others, f"the viewer has no {others}"
    snapshot = pickle.loads(data)
    play_backwards(snapshot)
    for command in ("stats", "trace"):
        subprocess.run(
            [sys.executable, "-m", "torch.cuda._memory_viz", command, file], check=True, stdout=subprocess.DEVNULL
        )
    for command in ("trace_plot", "segment_plot"):
        subprocess.run(
            [sys.executable, "-m", "torch.cuda._memory_viz", command, file, "-o", "/dev/null"], check=True
        )
    reserved = sum(segment["total_size"] for segment in snapshot["segments"])
    allocated = sum(segment["allocated_size"] for segment in snapshot["segments"])
    print(f"{file}: {len(snapshot['device_traces'][0])} events, reserved {reserved}, allocated {allocated}: reads")


def main() -> int:
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    for file in sys.argv[1:]:
        check(file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
