"""What `shardloom convert hf-to-dcp` and `dcp-to-dcp` write, read by PyTorch.

usage: dcp_reads.py CHECKPOINT HF_FOLDER [--prefix P]

CHECKPOINT is the directory with .metadata. dcp_to_torch_save and dcp.load must give every tensor of HF_FOLDER, bit for
bit, under "model." + P + its name. Ends with 0 if they do.
"""
import argparse
import pathlib
import tempfile

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save


def weights(folder):
    tensors = {}
    for file in sorted(pathlib.Path(folder).glob("model*.safetensors")):
        tensors.update(load_file(file))
    return tensors


def same(found, wanted, how):
    missing = sorted(set(wanted) - set(found))
    assert not missing, f"{how}: missing {missing[:5]}"
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype and found[name].shape == tensor.shape, f"{how}: {name}"
        assert torch.equal(found[name].flatten().view(torch.uint8), tensor.flatten().view(torch.uint8)), f"{how}: {name}"
    print(f"{how}: {len(wanted)} tensors equal")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint")
    parser.add_argument("hf_folder")
    parser.add_argument("--prefix", default="")
    arguments = parser.parse_args()
    wanted = {arguments.prefix + name: tensor for name, tensor in weights(arguments.hf_folder).items()}

    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "all.pt"
        dcp_to_torch_save(arguments.checkpoint, file)
        everything = torch.load(file, weights_only=False)
    print("items:", {key: type(value).__name__ for key, value in everything.items()})
    same(everything["model"], wanted, "dcp_to_torch_save")

    state = {"model": {name: torch.empty_like(tensor) for name, tensor in wanted.items()}}
    dcp.load(state, checkpoint_id=arguments.checkpoint)
    same(state["model"], wanted, "dcp.load")


if __name__ == "__main__":
    main()
