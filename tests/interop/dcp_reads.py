"""Reads a checkpoint that we wrote with PyTorch: python dcp_reads.py DIR MODEL.safetensors [OPTIM.safetensors]

Three readers, each compared bit for bit with the safetensors files. MODEL has parameters by name, OPTIM "parameter::field";
a MODEL that ends in .items.safetensors has the names of the checkpoint, and with a .values.txt beside it values are compared too.
  dcp_to_torch_save, then torch.load
  dcp.load into whole tensors, in this process
  dcp.load into DTensors cut on dim 0 over three gloo processes
Exit status 1 and a line for each tensor that differs. Tensors that only the checkpoint has are counted, not compared.
"""
import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from make_dcp import shown
from safetensors.torch import load_file
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor


def expected_tensors(model, optim):
    if model.endswith(".items.safetensors"):
        return load_file(model)
    expected = {f"model.{name}": value for name, value in load_file(model).items()}
    for name, value in (load_file(optim) if optim else {}).items():
        parameter, field = name.split("::")
        expected[f"optimizer.state.{parameter}.{field}"] = value
    return expected


def same(a, b):
    bits = [x.contiguous().view(-1).view(torch.uint8) if x.numel() else x for x in (a, b)]
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(*bits)


def compare(reader, found, expected):
    bad = [name for name, value in expected.items() if name not in found or not same(found[name], value)]
    for name in bad:
        print(f"{reader}: {name}: {'missing' if name not in found else 'differs'}")
    print(f"{reader}: {len(expected)} tensors compared, {len(bad)} differ, {len(found) - len(expected)} more there")
    return len(bad)


def stored_tensors(folder):
    metadata = dcp.FileSystemReader(folder).read_metadata()
    return {name: about for name, about in metadata.state_dict_metadata.items() if isinstance(about, TensorStorageMetadata)}


def by_torch_save(folder):
    with tempfile.TemporaryDirectory() as scratch:
        path = os.path.join(scratch, "whole.pt")
        dcp_to_torch_save(folder, path)
        flat, _ = flatten_state_dict(torch.load(path, weights_only=False))
    return flat


def compare_values(flat, file):
    found = {name: shown(value) for name, value in flat.items() if not isinstance(value, torch.Tensor)}
    with open(file) as lines:
        expected = dict(line.rstrip("\n").split("\t", 1) for line in lines)
    bad = [name for name in expected | found if expected.get(name) != found.get(name)]
    for name in bad:
        print(f"value {name}: {found.get(name)} instead of {expected.get(name)}")
    print(f"dcp_to_torch_save: {len(expected)} values compared, {len(bad)} differ")
    return len(bad)


def by_load(folder):
    state = {name: torch.empty(about.size, dtype=about.properties.dtype) for name, about in stored_tensors(folder).items()}
    dcp.load(state, checkpoint_id=folder, no_dist=True)
    return state


def rank_main(rank, world, folder, result):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29681", RANK=str(rank), WORLD_SIZE=str(world))
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (world,))
    state = {}
    for name, about in stored_tensors(folder).items():
        empty = torch.zeros(about.size, dtype=about.properties.dtype)
        cut = empty.dim() and empty.dtype not in (torch.int16, torch.bool)  # gloo sends neither
        state[name] = distribute_tensor(empty, mesh, [Shard(0)]) if cut else empty
    dcp.load(state, checkpoint_id=folder)
    whole = {name: value.full_tensor() if isinstance(value, DTensor) else value for name, value in state.items()}
    if rank == 0:
        torch.save(whole, result)
    dist.destroy_process_group()


def by_three_ranks(folder):
    with tempfile.TemporaryDirectory() as scratch:
        result = os.path.join(scratch, "whole.pt")
        mp.spawn(rank_main, args=(3, folder, result), nprocs=3)
        return torch.load(result)


def main(folder, model, optim=None):
    print(f"PyTorch {torch.__version__}, {folder}")
    expected = expected_tensors(model, optim)
    flat = by_torch_save(folder)
    tensors = {name: value for name, value in flat.items() if isinstance(value, torch.Tensor)}
    bad = compare("dcp_to_torch_save", tensors, expected)
    values = model.removesuffix(".items.safetensors") + ".values.txt"
    if model.endswith(".items.safetensors") and os.path.exists(values):
        bad += compare_values(flat, values)
    bad += compare("dcp.load", by_load(folder), expected)
    bad += compare("dcp.load, 3 ranks", by_three_ranks(folder), expected)
    return 1 if bad else 0


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
