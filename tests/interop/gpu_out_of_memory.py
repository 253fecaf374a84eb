"""Out of memory of PyTorch FSDP2 on a real GPU, at places that are known.

Runs on one GPU: rank 0 of a world of N through the fake process group, whose buffers are real. At a module that is drawn
by seed, in forward or backward, the memory of the process is capped at what it has reserved, so that the next request
which the allocator cannot serve from its cache fails. OUT/cases.json gets PyTorch's text, the traceback, and the place where it came from:
the phase and the wrapped module. With --snapshots, OUT gets a memory snapshot of a whole step too; with --peaks, peaks alone.

usage: gpu_out_of_memory.py OUT [--cases N] [--snapshots] | OUT --peaks
"""

import argparse
import gc
import gzip
import json
import pathlib
import pickle
import random
import sys
import traceback

import torch
import torch.distributed as dist
import transformers
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.testing._internal.distributed.fake_pg import FakeStore

METHODS = {name: getattr(FSDPParamGroup, name) for name in ("unshard", "wait_for_unshard", "post_backward")}
CONFIGS = {
    "qwen3": {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "hidden_size": 2048, "intermediate_size": 6144,
              "num_hidden_layers": 10, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
              "vocab_size": 64000, "tie_word_embeddings": False, "max_position_embeddings": 8192, "rms_norm_eps": 1e-6},
    "llama": {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 2048, "intermediate_size": 8192,
              "num_hidden_layers": 8, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000,
              "tie_word_embeddings": False, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5},
    "qwen2": {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "hidden_size": 1536, "intermediate_size": 8960,
              "num_hidden_layers": 12, "num_attention_heads": 12, "num_key_value_heads": 2, "vocab_size": 100000,
              "tie_word_embeddings": False, "max_position_embeddings": 8192, "rms_norm_eps": 1e-6},
    "wide": {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 2560, "intermediate_size": 7168,
             "num_hidden_layers": 9, "num_attention_heads": 20, "num_key_value_heads": 4, "head_dim": 128,
             "vocab_size": 48000, "tie_word_embeddings": False, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5},
}


def make_model(config, world, reshard):
    mesh = init_device_mesh("cuda", (world,))
    made = transformers.AutoConfig.for_model(**config)
    made.use_cache = False
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(made, attn_implementation="sdpa", dtype=torch.float32)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    wrapped = {"model.embed_tokens": model.model.embed_tokens}
    wrapped |= {f"model.layers.{i}": layer for i, layer in enumerate(model.model.layers)}
    wrapped["lm_head"] = model.lm_head
    for module in wrapped.values():
        fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    model.to_empty(device="cuda")
    rotary = type(model.model.rotary_emb)(made, device="cuda")
    model.model.rotary_emb = rotary
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.to_local().normal_(0, 0.02)
    return model, wrapped


class Place:
    """Where the step is: the phase, the wrapped module whose forward or backward began last, and the work of FSDP for a group
    that runs, if any."""

    def __init__(self, wrapped):
        self.phase, self.module, self.cap_at = "forward", "", None
        self.works = []
        for path, module in wrapped.items():
            module.register_forward_pre_hook(lambda _, args, path=path: self.enter("forward", path))
            module.register_full_backward_pre_hook(lambda _, grad, path=path: self.enter("backward", path))

    def enter(self, phase, path):
        self.phase, self.module = phase, path
        if self.cap_at == (phase, path):
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            total = torch.cuda.get_device_properties(0).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, torch.cuda.memory_reserved() / total + 1e-9))


def watch_groups(place):
    """Notes which group FSDP gathers, copies out or reduces."""

    def watched(name, method):
        def run(group, *args, **kwargs):
            place.works.append((name, group._module_fqn or ""))
            result = method(group, *args, **kwargs)  # a failure leaves its work on the list
            place.works.pop()
            return result

        return run

    for name in ("unshard", "wait_for_unshard", "post_backward"):
        setattr(FSDPParamGroup, name, watched(name, METHODS[name]))


def run_step(model, ids, optimizer, place):
    place.phase, place.module = "forward", ""
    loss = model(input_ids=ids, labels=ids).loss
    place.phase, place.module = "backward", ""
    loss.backward()
    place.phase, place.module = "optimizer", ""
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def one(name, world, sequence, micro_batch, reshard, step, cap_at, snapshot=None):
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(1.0)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
    try:
        model, wrapped = make_model(CONFIGS[name], world, reshard)
        place = Place(wrapped)
        watch_groups(place)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
        ids = torch.randint(0, CONFIGS[name]["vocab_size"], (micro_batch, sequence), device="cuda")
        case = {"model": name, "world": world, "sequence": sequence, "micro_batch": micro_batch, "reshard": reshard,
                "step": step, "capped_at": cap_at}
        for number in range(3):
            if snapshot and number == 1:
                torch.cuda.memory._record_memory_history(max_entries=400000, stacks="python")
            if number == step:
                place.cap_at = cap_at
            try:
                run_step(model, ids, optimizer, place)
            except torch.OutOfMemoryError as error:
                return case | {"phase": place.phase, "module": place.module, "work": place.works[-1:], "text": str(error),
                               "log": "".join(traceback.format_exception(error))}
            if snapshot and number == 1:
                found = torch.cuda.memory._snapshot()
                torch.cuda.memory._record_memory_history(enabled=None)
                with gzip.open(snapshot, "wb") as file:
                    pickle.dump(found, file, protocol=4)
                return case | {"peak": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.memory_reserved()}
        return case | {"phase": "none", "text": ""}
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        dist.destroy_process_group()


def peaks(name, world, sequence, micro_batch, reshard):
    """Peaks of allocated memory in forward, backward and optimizer of the third step, and what is reserved."""
    gc.collect()
    torch.cuda.empty_cache()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
    try:
        model, _ = make_model(CONFIGS[name], world, reshard)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
        ids = torch.randint(0, CONFIGS[name]["vocab_size"], (micro_batch, sequence), device="cuda")
        found = {}
        for _ in range(3):
            for phase in ("forward", "backward", "optimizer"):
                torch.cuda.reset_peak_memory_stats()
                if phase == "forward":
                    loss = model(input_ids=ids, labels=ids).loss
                elif phase == "backward":
                    loss.backward()
                else:
                    optimizer.step()
                    optimizer.zero_grad(set_to_none=True)
                    del loss
                found[phase] = torch.cuda.max_memory_allocated()
        return {"model": name, "world": world, "sequence": sequence, "micro_batch": micro_batch, "reshard": reshard,
                "peaks": found, "reserved": torch.cuda.memory_reserved()}
    finally:
        dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--cases", type=int, default=24)
    parser.add_argument("--snapshots", action="store_true")
    parser.add_argument("--peaks", action="store_true", help="peaks of twelve jobs, into OUT/peaks.json")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.peaks:
        rows = [peaks(name, *job) for name in CONFIGS
                for job in ((8, 2048, 2, True), (4, 4096, 1, False), (2, 1024, 3, True))]
        (arguments.out / "peaks.json").write_text(json.dumps({"configs": CONFIGS, "rows": rows}, indent=1))
        return
    about = {"torch": torch.__version__, "transformers": transformers.__version__,
             "device": torch.cuda.get_device_name(), "configs": CONFIGS}
    random.seed(34)
    cases = []
    for number in range(arguments.cases):
        name = list(CONFIGS)[number % len(CONFIGS)]
        layers = CONFIGS[name]["num_hidden_layers"]
        paths = ["model.embed_tokens", "lm_head"] + [f"model.layers.{i}" for i in range(layers)] * 2
        cap_at = (random.choice(["forward", "backward"]), random.choice(paths))
        try:
            case = one(name, random.choice([2, 4, 8]), random.choice([1024, 2048, 4096]), random.choice([1, 2, 3]),
                       random.choice([True, True, False]), random.choice([0, 1]), cap_at)
        except Exception as error:  # the next cases still run
            case = {"model": name, "capped_at": cap_at, "failed": repr(error)[:500]}
        print(number, {key: value for key, value in case.items() if key not in ("text", "log")}, flush=True)
        cases.append(case)
        (arguments.out / "cases.json").write_text(json.dumps(about | {"cases": cases}, indent=1))
    if arguments.snapshots:
        about["snapshots"] = []
        for name in ("qwen3", "llama"):
            about["snapshots"].append(one(name, 4, 2048, 1, True, -1, None, arguments.out / f"{name}.pickle.gz"))
            print(about["snapshots"][-1], flush=True)
            (arguments.out / "cases.json").write_text(json.dumps(about | {"cases": cases}, indent=1))


if __name__ == "__main__":
    sys.exit(main())
