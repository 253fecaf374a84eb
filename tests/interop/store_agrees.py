"""PyTorch's ranks under Shardloom's launcher: a gloo group, and every request of TCPStore, served by the agent's store.

    for node in 0 1; do
      PYTHON_EXEC=venv/bin/python shardloom torchrun --nnodes 2 --nproc-per-node 2 --node-rank $node --master-addr 127.0.0.1 \
        tests/interop/store_agrees.py &
    done; wait                                    # "store agrees" from each of 4 ranks
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
total = torch.ones(4) * (rank + 1)
dist.all_reduce(total)
assert total.tolist() == [size * (size + 1) / 2] * 4

address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
store = dist.TCPStore(address, port, is_master=False, timeout=timedelta(seconds=3))
store.set(f"k{rank}", f"v{rank}")
store.wait([f"k{i}" for i in range(size)])
assert store.get("k0") == b"v0" and store.multi_get(["k0", "k1"]) == [b"v0", b"v1"]
store.multi_set([f"m{rank}", f"n{rank}"], ["a", "b"])
assert store.get(f"n{rank}") == b"b"
store.append(f"a{rank}", "x")
store.append(f"a{rank}", "y")
assert store.get(f"a{rank}") == b"xy"
assert store.compare_set(f"c{rank}", "", "one") == b"one" and store.compare_set(f"c{rank}", "two", "three") == b"one"
assert store.add(f"s{rank}", 3) == 3 and store.add(f"s{rank}", -1) == 2
assert store.check([f"k{rank}"]) and not store.check(["absent"])
assert store.delete_key(f"m{rank}") and not store.delete_key("absent")
try:
    store.wait(["absent"], timedelta(seconds=1))
    raise SystemExit("a wait for nothing succeeds")
except dist.DistStoreError:
    pass
assert store.get(f"k{rank}") == b"v%d" % rank and store.num_keys() > size
dist.barrier()
print("store agrees", torch.__version__, flush=True)
dist.destroy_process_group()
