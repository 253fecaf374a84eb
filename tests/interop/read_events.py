"""Prints tag, step and value of every scalar in a folder of event files, as the tensorboard package reads them.

python read_events.py FOLDER        needs: pip install tensorboard
"""

import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    events = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0})  # 0: all of them
    events.Reload()
    for tag in sorted(events.Tags()["scalars"]):
        for scalar in events.Scalars(tag):
            print(f"{tag}\t{scalar.step}\t{scalar.value!r}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
