"""Faults in real runs of PyTorch's FSDP2 on CPUs (gloo), and what `shardloom explain` says of their logs.

usage: explain_faults_test.py SHARDLOOM [--keep FOLDER] [--again] [--cases N | --only CASE...]

Each case is a small model of transformers, its wrapped modules, 2 to 4 ranks under torchrun, and one fault in one rank:
it skips a wrapped module in forward or backward, stops before one, is killed before one, or may allocate no more memory
from there on. The log is what torchrun writes, as it is, with TORCH_DISTRIBUTED_DEBUG=DETAIL and TORCH_LOGS=+fsdp.
A case passes if the explanation has exactly one faulty rank, and rank, module, phase, step and micro-batch are those
injected. Of an out of memory, the rank's trace has to end there, and the first allocation of that size in the plan has
to be there; of a rank that skips, no other rank may be named for another collective (of two ranks either may be).
Prints a line per case; the last is `N of M`.

--again  explains the logs that --keep left, without new runs
--keep   leaves the folder of each case there: config.json, fsdp2.yaml, case.json, run.log, explanation.json
"""

import argparse
import json
import os
import pathlib
import random
import socket
import subprocess
import sys
import tempfile

from transformers import GPT2Config, LlamaConfig, Qwen2Config, Qwen3Config

RUN = pathlib.Path(__file__).resolve().parent / "faulty_run.py"
RUN_LIMIT_S = 300
TIMEOUT_S = 12

ROTARY = dict(vocab_size=512, hidden_size=384, intermediate_size=1024, num_attention_heads=6, num_key_value_heads=2)
# Allocations above the C library's threshold are the system's, so that a cap on memory counts each of them.
ENVIRONMENT = {
    "TORCH_DISTRIBUTED_DEBUG": "DETAIL",
    "TORCH_LOGS": "+fsdp",
    "OMP_NUM_THREADS": "1",
    "MALLOC_MMAP_THRESHOLD_": str(128 << 10),
    "MALLOC_ARENA_MAX": "1",
}


def config_of(family, layers, tied):
    common = dict(max_position_embeddings=1024, bos_token_id=None, eos_token_id=None, tie_word_embeddings=tied)
    if family == "gpt2":
        return GPT2Config(vocab_size=512, n_positions=1024, n_embd=384, n_layer=layers, n_head=6, bos_token_id=None,
                          eos_token_id=None, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)  # fmt: skip
    if family == "qwen3":
        return Qwen3Config(**common, **ROTARY, num_hidden_layers=layers, head_dim=64)
    return {"llama": LlamaConfig, "qwen2": Qwen2Config}[family](**common, **ROTARY, num_hidden_layers=layers)


def wraps_of(family, tied):
    """Patterns, those of inner modules before those of outer ones."""
    layers = "transformer.h.{*}" if family == "gpt2" else "model.layers.{*}"
    attention = ".attn" if family == "gpt2" else ".self_attn"
    ends = [] if family == "gpt2" or tied else ["model.embed_tokens", "lm_head"]
    return [[layers], [*ends, layers], [layers + attention, layers + ".mlp", layers], [layers + ".mlp", *ends, layers]]


FAULTS = [("skip", "forward"), ("hang", "forward"), ("memory", "forward"), ("die", "forward"), ("skip", "backward"),
          ("hang", "backward"), ("skip", "forward"), ("die", "backward"), ("memory", "backward"),
          ("skip", "backward")]  # fmt: skip


def made(number):
    """The case of a number, always the same."""
    choice = random.Random(number)
    family = choice.choice(["qwen3", "llama", "qwen2", "gpt2"])
    tied = family == "gpt2" or choice.random() < 0.3
    layers, wrap = choice.randint(3, 5), choice.choice(wraps_of(family, tied))
    kind, phase = FAULTS[number % len(FAULTS)]
    pattern = choice.choice([one for one in wrap if "{*}" in one])
    world, micro_batches = choice.randint(2, 4), choice.randint(1, 3)
    return {
        "family": family,
        "layers": layers,
        "tied": tied,
        "wrap": wrap,
        "seed": number,
        "world_size": world,
        "reshard_after_forward": choice.random() < 0.6,
        "seq_length": 64,
        "micro_batch_size": choice.randint(2, 3),
        "micro_batches": micro_batches,
        "steps": 3,
        "timeout_s": TIMEOUT_S,
        "fault": {
            "kind": kind,
            "phase": phase,
            "rank": choice.randrange(world),
            "step": choice.randint(1, 2),
            "micro_batch": choice.randrange(micro_batches),
            "module": pattern.replace("{*}", str(choice.randrange(layers))),
        },
    }


def write_case(case, folder):
    config = config_of(case["family"], case["layers"], case["tied"])
    config.save_pretrained(folder)
    case["config"] = str(folder)
    (folder / "case.json").write_text(json.dumps(case, indent=1))
    lines = ["sharding_size: auto", "sub_modules_to_wrap:", *[f'  - "{one}"' for one in case["wrap"]]]
    lines.append(f"reshard_after_forward: {str(case['reshard_after_forward']).lower()}")
    (folder / "fsdp2.yaml").write_text("\n".join(lines) + "\n")


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def run(case, folder):
    """The log of all ranks, as torchrun writes it."""
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(case["world_size"]), "--tee", "3",
             "--log-dir", str(folder / "ranks"), "--master-addr", "127.0.0.1", "--master-port", str(free_port()),
             str(RUN), str(folder / "case.json")]  # fmt: skip
    with open(folder / "run.log", "wb") as log:
        done = subprocess.run(words, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, **ENVIRONMENT},
                              timeout=RUN_LIMIT_S, check=False)  # fmt: skip
    return done.returncode


def explained(program, case, folder):
    samples = case["world_size"] * case["micro_batch_size"] * case["micro_batches"]
    words = [program, "explain", folder / "run.log", "--model-config", folder / "config.json", "--use-torch-fsdp2",
             "--fsdp2-config-path", folder / "fsdp2.yaml", "--world-size", case["world_size"], "--seq-length",
             case["seq_length"], "--micro-batch-size", case["micro_batch_size"], "--global-batch-size", samples,
             "--kernels", "pytorch", "--json", folder / "explanation.json"]  # fmt: skip
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, check=False)
    (folder / "explanation.txt").write_text(done.stdout + done.stderr)
    if done.returncode != 0:
        return None, done.stderr.strip()
    return json.loads((folder / "explanation.json").read_text()), ""


def wrong_trace(case, explanation):
    fault, trace = case["fault"], explanation["trace"]
    if not trace or len(trace["faults"]) != 1:
        return f"{len(trace['faults']) if trace else 'no trace,'} faulty ranks: {trace and trace['faults']}"
    found = trace["faults"][0]
    wanted = {
        "rank": fault["rank"],
        "kind": "skipped" if fault["kind"] == "skip" else "stopped",
        "group": fault["module"],
        "phase": fault["phase"],
        "step": fault["step"] + 1,
        "micro_batch": fault["micro_batch"],
    }
    different = [f"{key} {found[key]}, not {value}" for key, value in wanted.items() if found[key] != value]
    if trace["unplanned"]:
        different.append(f"groups that the plan does not have: {trace['unplanned']}")
    return "; ".join(different)


def wrong_end(case, explanation):
    """Where the trace ends on the rank with the fault; the others may wait at the same place."""
    fault, trace = case["fault"], explanation["trace"]
    others = [found["rank"] for found in trace["faults"] if found["rank"] != fault["rank"]]
    last = next(rank for rank in trace["ranks"] if rank["rank"] == fault["rank"])
    passes = fault["step"] * case["micro_batches"] + fault["micro_batch"] + 1
    if others or (last["group"], last["phase"], last["pass"]) != (fault["module"], fault["phase"], passes):
        return f"the trace of the rank ends at {last}; other faulty ranks: {others}"
    return ""


def wrong_memory(case, explanation):
    fault, memory = case["fault"], explanation["memory"]
    if end := wrong_end(case, explanation):
        return end
    if not memory:
        return "no out of memory"
    if memory["rank"] != fault["rank"]:
        return f"out of memory on rank {memory['rank']}"
    place = memory["place"]
    if not place["size_matches"] or not place["by_trace"]:
        return f"no allocation of that size where the trace ends: {place['places']}"
    first = place["places"][0]
    wanted = {"phase": fault["phase"], "group": fault["module"], "micro_batch": fault["micro_batch"]}
    different = [f"{key} {first[key]}, not {value}" for key, value in wanted.items() if first[key] != value]
    return "; ".join(different)


def wrong_collective(case, explanation):
    """A rank that issued another collective than most: where most are more than half, it is the one with the fault."""
    others = [other["rank"] for hang in explanation["hangs"] for other in hang["others"]]
    if case["world_size"] > 2 and set(others) - {case["fault"]["rank"]}:
        return f"ranks {others} issued other collectives"
    return ""


def wrong(case, explanation):
    if case["fault"]["kind"] == "memory":
        return wrong_memory(case, explanation)
    found = wrong_trace(case, explanation)
    return found or (wrong_collective(case, explanation) if case["fault"]["kind"] == "skip" else "")


def checked(program, number, folder, again):
    case = made(number)
    folder.mkdir(parents=True, exist_ok=True)
    write_case(case, folder)
    fault = case["fault"]
    words = (f"{number:2}: {case['family']}, {case['world_size']} ranks, {case['micro_batches']} micro-batches, wraps "
             f"{len(case['wrap'])}; rank {fault['rank']}: {fault['kind']} at {fault['module']} in {fault['phase']}, "
             f"step {fault['step'] + 1}, micro-batch {fault['micro_batch']}")  # fmt: skip
    if not again and run(case, folder) == 0:
        return words, "the run did not fail"
    explanation, error = explained(program, case, folder)
    return words, error or wrong(case, explanation)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shardloom", type=pathlib.Path)
    parser.add_argument("--keep", type=pathlib.Path)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--cases", type=int, default=20)
    parser.add_argument("--only", metavar="CASE", type=int, nargs="+")
    arguments = parser.parse_args()
    numbers = arguments.only or range(arguments.cases)
    passed = 0
    with tempfile.TemporaryDirectory() as made_here:
        base = arguments.keep or pathlib.Path(made_here)
        for number in numbers:
            folder = base.resolve() / str(number)
            words, problem = checked(arguments.shardloom.resolve(), number, folder, arguments.again)
            passed += not problem
            print(f"{words}: {problem or 'explained'}", flush=True)
    print(f"{passed} of {len(numbers)}")
    return 0 if passed == len(numbers) else 1


if __name__ == "__main__":
    sys.exit(main())
