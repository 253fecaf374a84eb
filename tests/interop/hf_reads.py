"""What `shardloom convert dcp-to-hf` writes, opened by transformers.

usage: hf_reads.py FOLDER ORIGINAL [--tolerance X]

from_pretrained must open both without a missing or unexpected name; the logits of the same tokens must be equal (or
within X, after a change of dtype). Ends with 0 if they are.
"""
import argparse

import torch
from transformers import AutoModelForCausalLM


def opened(folder):
    model, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"] and not report["mismatched_keys"], report
    print(f"{folder}: {type(model).__name__}, {model.dtype}, {model.num_parameters()} parameters")
    return model.float().eval()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("original")
    parser.add_argument("--tolerance", type=float, default=0.0)
    arguments = parser.parse_args()
    ours, original = opened(arguments.folder), opened(arguments.original)
    tokens = torch.randint(0, original.config.vocab_size, (2, 32), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        apart = (ours(tokens).logits - original(tokens).logits).abs().max().item()
    print("largest difference of logits:", apart)
    assert apart <= arguments.tolerance


if __name__ == "__main__":
    main()
