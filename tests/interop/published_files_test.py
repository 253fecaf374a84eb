"""Published FSDP2 files with the real classes of transformers and diffusers: recorded, planned, and counted again.

usage: published_files_test.py SHARDLOOM [--graphs FOLDER] [CASE...]

SHARDLOOM  the program
--graphs   where recordings are kept; one that is there is not made again
CASE       names of cases; without them all

Each case is a file as it was published (published_files/files; README.md there has the sources), a class at its
published size (published_files/models), and the command that plans them. From the class itself, built on the meta
device, this test counts parameters, groups (modules that the file's patterns select, with a parameter of their own
that is trained), bytes of the shards and the arithmetic of a step, and compares the plan with them. Prints a line per
case; the last is `N of N`.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

import torch
import yaml

HERE = pathlib.Path(__file__).resolve().parent
TREE = HERE.parents[1]
DATA = HERE / "published_files"
sys.path.insert(0, str(TREE / "tools"))

import graph_models  # noqa: E402
import record_model  # noqa: E402

GIB = 2**30


class Case:
    """name: of the file; recorded: words of record_model.py behind the model; planned: words of `plan`."""

    def __init__(self, name, recorded, planned, model=None, python=None, file=None, patches=0):
        self.patches = patches  # tokens of a row that are not of the sequence
        self.name, self.recorded, self.planned = name, recorded.split(), planned.split()
        self.file = DATA / "files" / f"{file or name}.yaml"
        if python:
            self.source = ["--python", f"{DATA / 'models.py'}:{python}"]
        else:
            self.source = ["--model", str(DATA / "models" / f"{model or name}.json")]


PICTURE = "--image 512 512 --batch 1 --sequence 1024"
LLM = "--training.per_device_train_batch_size 1 --parallel.fsdp_size"  # as the published command has them
ROW = "--micro-batch-size 1 --seq-length 4096"  # accelerate's files have neither
CASES = [
    Case("qwen3_vl_8b", PICTURE, "--world-size 8 --device ascend-910b"),
    Case("qwen3_vl_235b_a22b", PICTURE, "--world-size 128 --device ascend-910c"),
    Case("qwen3_5_27b", "--image 512 512 --batch 2 --sequence 16384", "--world-size 16 --device ascend-910c"),
    Case("gpt_oss_20b", "--batch 1 --sequence 4096", f"--world-size 16 --device ascend-910c {LLM} 16"),
    Case("qwen3_next_80b_a3b", "--batch 1 --sequence 16384", f"--world-size 64 --device ascend-910c {LLM} 64"),
    Case("minimax_m2", "--batch 1 --sequence 8192", f"--world-size 128 --device ascend-910c {LLM} 128"),
    Case(
        "qwen3_5_35b_a3b_accelerate",
        "--image 512 512 --batch 1 --sequence 4096",
        f"--device ascend-910c {ROW}",
        model="qwen3_5_35b_a3b",
    ),
    Case(
        "z_image",
        "--batch 1 --sequence 512",
        "--world-size 16 --device h100 --micro-batch-size 1 --seq-length 512",
        python="z_image",
        patches=4096,
    ),
    Case("glm_4_5_air", "--batch 1 --sequence 4096", f"--world-size 64 --device h200 {ROW}", file="trl"),
    Case(
        "seed_oss_36b", "--batch 1 --sequence 4096", f"--world-size 16 --device h200 {ROW}", file="llama_factory"
    ),
]


# ---- the real class


class Facts:
    """What the class says by itself: parameters, groups, trained parameters."""

    def __init__(self, case):
        words = [*case.source, *case.recorded, "--out", "unused"]
        arguments = record_model.read_arguments(words)
        source = (
            graph_models.HuggingFaceModel(arguments) if arguments.model else graph_models.PythonModel(arguments)
        )
        with torch.device("meta"):
            self.model = source.make()
        self.class_name = type(self.model).__name__
        self.modules = {name: module for name, module in self.model.named_modules() if name}
        written = yaml.safe_load(case.file.read_text())
        for pattern in written.get("model", {}).get("freeze", []):
            for module in self.selected([pattern]).values():
                module.requires_grad_(False)
        self.parameters = sum(parameter.numel() for parameter in self.model.parameters())
        self.trained = sum(parameter.numel() for parameter in self.model.parameters() if parameter.requires_grad)
        self.groups = self.count_groups(groups_of(written, self))

    def sharded(self, ranks, trained):
        """Elements of the first rank: rows of dimension 0, rounded up."""
        return sum(
            -(-parameter.shape[0] // ranks) * parameter[0].numel()
            for parameter in self.model.parameters()
            if parameter.requires_grad or not trained
        )

    def used(self):
        """Parameters that a token is multiplied with: without the embedding, and of the experts those it chooses."""
        text = getattr(self.model.config, "get_text_config", lambda: None)()
        first = ("num_experts", "num_local_experts", "n_routed_experts")
        experts = next((getattr(text, name) for name in first if getattr(text, name, 0)), 1)
        share = getattr(text, "num_experts_per_tok", 1) / experts if experts > 1 else 1
        embedding = ends(self)[0]
        return sum(
            parameter.numel() * (share if ".experts." in name else 1)
            for name, parameter in self.model.named_parameters()
            if not embedding or name != f"{embedding}.weight"
        )

    def selected(self, patterns):
        wanted = [re.compile(re.escape(pattern).replace(r"\{\*\}", r"\d+")) for pattern in patterns]
        return {
            name: module for name, module in self.modules.items() if any(one.fullmatch(name) for one in wanted)
        }

    def of_classes(self, names):
        return [[name] for name, module in self.modules.items() if type(module).__name__ in names]

    def count_groups(self, groups):
        """Groups that own a trained parameter, the root among them: the innermost group that holds it has it."""
        owners = {name: index for index, names in enumerate(groups) for name in names}
        found = set()
        for name, parameter in self.model.named_parameters():
            path = name.rpartition(".")[0]
            while path and path not in owners:
                path = path.rpartition(".")[0]
            if parameter.requires_grad:
                found.add(owners.get(path, "root"))
        return len(found)


def groups_of(written, facts):
    """The groups of a file as lists of paths."""
    if "fsdp_config" in written:
        classes = written["fsdp_config"].get("fsdp_transformer_layer_cls_to_wrap")
        names = classes.split(",") if classes else facts.model._no_split_modules
        groups = facts.of_classes([name.strip() for name in names])
        embedding, output = ends(facts)
        if embedding:
            groups.append([embedding])
        last = [
            name
            for name in facts.modules
            if name.rpartition(".")[0] == embedding.rpartition(".")[0] and "norm" in name
        ]
        together = ([last[-1]] if embedding and last else []) + ([output] if output else [])
        return groups + ([together] if together else [])
    parallel = written["parallel"]
    patterns = parallel["fsdp_plan"]["apply_modules"] if "fsdp_plan" in parallel else parallel["fsdp_modules"]
    return [[name] for name in facts.selected(patterns)]


def ends(facts):
    """Paths of the input embedding and of the output layer; empty where the class has none."""
    paths = {id(module): name for name, module in facts.modules.items()}
    found = []
    for getter in ("get_input_embeddings", "get_output_embeddings"):
        module = getattr(facts.model, getter)() if hasattr(facts.model, getter) else None
        found.append(paths.get(id(module), ""))
    return found


# ---- the plan


def recorded(case, folder):
    graph = folder / f"{case.name}.json.gz"
    if not graph.exists():
        subprocess.run(
            [sys.executable, TREE / "tools/record_model.py", *case.source, *case.recorded, "--out", graph],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    return graph


def planned(program, case, graph, folder):
    out = folder / f"{case.name}.plan.json"
    done = subprocess.run(
        [program, "plan", case.file, "--model-graph", graph, *case.planned, "--json", out],
        capture_output=True,
        text=True,
    )
    if done.returncode not in (0, 3) or not out.exists():
        raise AssertionError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else done.stdout[-300:])
    return json.loads(out.read_text())


def problems(case, facts, plan):
    """What differs between the plan and the class."""
    found = []

    def equal(what, ours, counted):
        if ours != counted:
            found.append(f"{what} {ours}, counted {counted}")

    equal("class", plan["model"], facts.class_name)
    equal("parameters", plan["parameters"], facts.parameters)
    equal("trained", plan["trained_parameters"], facts.trained)
    micro_batches = plan["micro_batches"]
    reduced = sum(row["count"] for row in plan["communication"] if row["collective"] == "reduce_scatter")
    equal("groups", reduced / micro_batches, facts.groups)
    # fp32 shards and Adam's two moments of the trained ones; between steps nothing else but the workspace.
    memory, ranks = plan["memory"], plan["world_size"]
    shards = 4 * facts.sharded(ranks, trained=False) + 8 * facts.sharded(ranks, trained=True)
    rest = memory["steady_allocated_bytes"] - memory["workspace_bytes"] - shards
    if not -0.001 * shards <= rest <= 0.02 * shards:
        found.append(f"{rest / GIB:.3f} GiB more than shards and moments of {shards / GIB:.3f} GiB between steps")
    # 6 FLOPs a parameter and token, and attention on top.
    tokens = plan["throughput"]["tokens"] / ranks + case.patches * plan["micro_batch_size"] * micro_batches
    arithmetic = plan["throughput"]["model_flops"] / (6 * facts.used() * tokens)
    if not 0.9 <= arithmetic <= 1.6:
        found.append(f"{arithmetic:.2f} times the arithmetic of its parameters")
    if memory["peak_allocated_bytes"] < shards + 4 * facts.sharded(ranks, trained=True):
        found.append("peak below shards, moments and gradients")
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("--graphs", type=pathlib.Path)
    parser.add_argument("cases", nargs="*")
    arguments = parser.parse_intermixed_args()
    cases = [case for case in CASES if not arguments.cases or case.name in arguments.cases]
    passed = 0
    with tempfile.TemporaryDirectory() as made:
        folder = arguments.graphs or pathlib.Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        heads = ("groups", " parameters", " peak GiB", " step s", " fits")
        print(f"{'file':28} {'class':37}", *heads)
        for case in cases:
            try:
                graph, facts = recorded(case, folder), Facts(case)
                plan = planned(arguments.program, case, graph, folder)
                wrong = problems(case, facts, plan)
            except Exception as problem:
                print(f"{case.name:28} {type(problem).__name__}: {problem}", flush=True)
                continue
            passed += not wrong
            print(
                f"{case.name:28} {facts.class_name:37} {facts.groups:6} {facts.parameters / 1e9:9.3f} G"
                f" {plan['memory']['peak_allocated_bytes'] / GIB:9.2f} {plan['time']['step_ns'] / 1e9:7.3f}"
                + ("  yes" if plan["memory"]["fits"] else "  no")
                + "".join(f"\n    {line}" for line in wrong),
                flush=True,
            )
    print(f"{passed} of {len(cases)}")
    return 0 if passed == len(cases) else 1


if __name__ == "__main__":
    sys.exit(main())
