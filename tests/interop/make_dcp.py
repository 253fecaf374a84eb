"""Writes checkpoints with PyTorch's torch.distributed.checkpoint, for our reader: python make_dcp.py DIR

DIR/NAME/                     a checkpoint
DIR/NAME.model.safetensors    whole parameters, by name
DIR/NAME.optim.safetensors    whole state of the optimizer, "parameter::field"
DIR/NAME.items.safetensors    every tensor of the checkpoint, whole, by the name the checkpoint gives it
DIR/NAME.values.txt           every other value: name, tabulator, repr(); bytes as <2 bytes>

w1 w2 w4        FSDP2 on so many gloo processes; rows that no number of ranks divides, a dim of one row, bf16, a scalar
async_w2        the same by async_save
tp2_fsdp2       DTensors cut on two dims: tensor parallel and FSDP2, column-parallel weights strided
hf_w1, hf_w2    parameters alone by HuggingFaceStorageWriter, each rank its shard
strides         plain tensors: transposed, sliced, empty, every dtype (one process)
"""
import os
import shutil
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from safetensors.torch import save_file
from torch import nn
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

HF = dcp.HuggingFaceStorageWriter


class Model(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.up = nn.Linear(dim, 4 * dim, bias=False)
        self.down = nn.Linear(4 * dim, dim, bias=False)
        self.odd = nn.Linear(dim, 7)
        self.one_row = nn.Parameter(torch.randn(1, 5))
        self.low = nn.Linear(dim, 3, dtype=torch.bfloat16)
        self.register_buffer("seen", torch.tensor([2, 3]))

    def forward(self, x):
        y = self.odd(self.down(torch.relu(self.up(x)))).sum() + self.one_row.sum()
        return y + self.low(x.bfloat16()).float().sum()


def whole(value):
    return (value.full_tensor() if isinstance(value, DTensor) else value).detach().clone().contiguous()


def save(state, folder, how):
    if how == "async":
        dcp.async_save(state, checkpoint_id=folder).result()
    elif how == "hf":
        dcp.save(state, storage_writer=HF(folder, save_distributed=True))
    else:
        dcp.save(state, checkpoint_id=folder)


def shown(value):
    return f"<{len(value)} bytes>" if isinstance(value, bytes) else repr(value)


def write_expected(state, folder):
    flat, _ = flatten_state_dict(state)
    tensors = {name: whole(value) for name, value in flat.items() if isinstance(value, torch.Tensor)}
    values = {name: value for name, value in flat.items() if not isinstance(value, torch.Tensor)}
    if dist.is_initialized() and dist.get_rank() != 0:
        return
    save_file(tensors, folder + ".items.safetensors")
    with open(folder + ".values.txt", "w") as file:
        file.writelines(f"{name}\t{shown(value)}\n" for name, value in values.items())
    model = {name.removeprefix("model."): value for name, value in tensors.items() if name.startswith("model.")}
    optim = {}
    for name, value in tensors.items():
        if name.startswith("optimizer.state."):
            parameter, field = name.removeprefix("optimizer.state.").rsplit(".", 1)
            optim[f"{parameter}::{field}"] = value
    save_file(model, folder + ".model.safetensors")
    save_file(optim, folder + ".optim.safetensors")


def rank_main(rank, world, port, folder, how):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(world))
    dist.init_process_group("cpu:gloo" if how == "async" else "gloo")
    torch.manual_seed(7)
    torch.set_num_threads(1)
    model = Model(6)
    if how == "tp":
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        parallelize_module(model, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(model.low, mesh=mesh["dp"])
        fully_shard(model, mesh=mesh["dp"])
    else:
        mesh = init_device_mesh("cpu", (world,))
        fully_shard(model.low, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model(torch.ones(2, 6)).backward()
    optimizer.step()
    if how == "hf":
        state = get_model_state_dict(model)
    else:
        state = {"model": get_model_state_dict(model), "optimizer": get_optimizer_state_dict(model, optimizer),
                 "step": 3, "loss_scale": 65536.0, "note": "a 'string' with\nlines", "rng": torch.get_rng_state(),
                 "nested": {"flag": True, "nothing": None, "pair": (1, -2.5), "list": [1 << 40, "x"], "raw": b"\0\xff"},
                 "scalar": torch.tensor(2.5, dtype=torch.float64)}
    save(state, folder, how)
    write_expected(state, folder)
    dist.destroy_process_group()


def write_strides(folder):
    whole_range = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    state = {"transposed": whole_range.t(), "sliced": whole_range[1:3, ::2], "tail": whole_range[2:],
             "empty": torch.zeros(0, 3), "scalar": torch.tensor(7)}
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int8, torch.int16, torch.int32,
                  torch.int64, torch.uint8, torch.bool):
        state[str(dtype).removeprefix("torch.")] = torch.tensor([0, 1, 2, 3]).to(dtype)
    dcp.save(state, checkpoint_id=folder, no_dist=True)
    write_expected(state, folder)


def main(root):
    os.makedirs(root, exist_ok=True)
    cases = [("w1", 1, ""), ("w2", 2, ""), ("w4", 4, ""), ("async_w2", 2, "async"), ("tp2_fsdp2", 4, "tp"),
             ("hf_w1", 1, "hf"), ("hf_w2", 2, "hf")]
    for number, (name, world, how) in enumerate(cases):
        folder = os.path.join(root, name)
        shutil.rmtree(folder, ignore_errors=True)
        mp.spawn(rank_main, args=(world, 29610 + number, folder, how), nprocs=world)
        print(f"{name}: written by {world} processes of PyTorch {torch.__version__}", flush=True)
    shutil.rmtree(os.path.join(root, "strides"), ignore_errors=True)
    write_strides(os.path.join(root, "strides"))
    print("strides: written")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
