"""Writes tests/formats/data with PyTorch: python dcp_goldens.py tests/formats/data

dcp/          a checkpoint of two gloo processes: "w" [3, 2] fp32 = 0..5, cut on dim 0; "c" [2, 3] bf16 = 0..5, cut on
              dim 1; "s" fp64 scalar 2.5; values "step", "note", "nested.pair", "nested.raw"
hf/           "w" and "c" by HuggingFaceStorageWriter, each process its shard
whole/        the same, put together by consolidate_safetensors_files
NAME.pt       torch.save: transposed, sliced (tensors of strides of their own), parameter, expanded (one element, shape
              [1000, 1000]), uint16 (_rebuild_tensor_v3), value (each kind of value), evil (os.system), unsummed
              (without checksums)
"""
import argparse
import collections
import os
import shutil
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor


def rank_main(rank, root):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29655", RANK=str(rank), WORLD_SIZE="2")
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2,))
    w = torch.arange(6, dtype=torch.float32).reshape(3, 2)
    c = torch.arange(6, dtype=torch.float32).reshape(2, 3).bfloat16()
    tensors = {"w": distribute_tensor(w, mesh, [Shard(0)]), "c": distribute_tensor(c, mesh, [Shard(1)])}
    values = {"s": torch.tensor(2.5, dtype=torch.float64), "step": 3, "note": "a\nb",
              "nested": {"pair": (1, -2.5), "raw": b"\0\xff"}}
    dcp.save({**tensors, **values}, checkpoint_id=f"{root}/dcp")
    dcp.save(tensors, storage_writer=dcp.HuggingFaceStorageWriter(f"{root}/hf", save_distributed=True))
    dcp.save(tensors, storage_writer=dcp.HuggingFaceStorageWriter(f"{root}/whole", save_distributed=True,
                                                                  enable_consolidation=True))
    dist.destroy_process_group()


class Evil:
    def __reduce__(self):
        return os.system, ("touch evil_was_here",)


def write_archives(root):
    whole = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    value = {"none": None, "bools": [True, False], "whole": [0, -1, 255, 65536, 1 << 40, -(1 << 62)], "real": 1e-8,
             "text": "ü", "bytes": b"\0\x80\xff", "pair": (1,), "size": torch.Size([2, 3]), "dtype": torch.float16,
             "ordered": collections.OrderedDict(a=1), "args": argparse.Namespace(lr=0.5, name="x")}
    for name, what in {"transposed": whole.t(), "sliced": whole[:, 1::2], "parameter": torch.nn.Parameter(whole[0]),
                       "expanded": torch.tensor(1.0).expand(1000, 1000), "uint16": torch.tensor([1], dtype=torch.uint16),
                       "value": value, "evil": Evil()}.items():
        torch.save(what, f"{root}/{name}.pt")
    torch.serialization.set_crc32_options(False)
    torch.save(whole, f"{root}/unsummed.pt")


def main(root):
    shutil.rmtree(root, ignore_errors=True)
    os.makedirs(root)
    mp.spawn(rank_main, args=(root,), nprocs=2)
    shutil.rmtree(f"{root}/whole/sharded")
    write_archives(root)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
