"""tools/record_model.py beside recordings that another recorder made, and beside its own predictions.

usage: record_model_test.py [--graphs FOLDER] [CASE...]

--graphs  a folder of cases, each with graph.json.gz (version 0) and expected.json.gz (class, config, inputs); without
          it the cases of this file run alone.

A recording is equal to a reference if modules, parameters, tensors, storages and events are equal one by one. Two
fields may differ, in one way each: a backward operator's module (ours is that of the first forward event with the
node's sequence number, the references' that of the last operator with it, or 0), and the FLOPs of the CPU's flash
attention, which the references give as 0. Prints a line per case; the last is `N passed, N failed`.
"""

import argparse
import gzip
import json
import pathlib
import subprocess
import sys
import tempfile
import traceback

TREE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TREE / "tools"))
MODELS = pathlib.Path(__file__).resolve().parent / "recorded_models.py"
SMALL = TREE / "tests/reference/graphs"

import graph_file  # noqa: E402
import graph_models  # noqa: E402
import record_model  # noqa: E402


def loaded(path):
    with gzip.open(path) as file:
        return json.load(file)


def recorded(words, point):
    """The program of one recording, as a file would hold it."""
    arguments = record_model.read_arguments([*map(str, words), "--out", "unused"])
    source = graph_models.HuggingFaceModel(arguments) if arguments.model else graph_models.PythonModel(arguments)
    recording = record_model.record(arguments, source, point)
    return json.loads(json.dumps(graph_file.program([recording], [point], None)))


# ---- references


def reference_words(folder, case, dtype):
    """The command line and the shape of a reference."""
    if case == "dit_xl2":
        return ["--python", f"{MODELS}:dit", "--attention", "native", "--norm", "decomposed"], {"B": 32, "S": 1}
    if case == "h200_llama_1b":
        return ["--python", f"{MODELS}:llama_1b"], {"B": 1, "S": 4096}
    expected = loaded(folder / case / "expected.json.gz")
    config = {**expected["config"], "architectures": [expected["class"]]}
    config.setdefault("model_type", MODEL_TYPES.get(expected["class"]))
    file = pathlib.Path(tempfile.mkdtemp()) / "config.json"
    file.write_text(json.dumps(config))
    words = ["--model", file, "--attention", "native", "--norm", "decomposed", "--dtype", dtype]
    shapes = expected["inputs"]
    point = {"B": next(iter(shapes.values()))[0][0]}
    if "input_ids" in shapes:
        point["S"] = shapes["input_ids"][0][1]
    if "image_grid_thw" in shapes:
        point["P"] = shapes["pixel_values"][0][0] // point["B"]
        words += ["--image", 448, 448]
    return words, point


MODEL_TYPES = {"Qwen2_5_VLForConditionalGeneration": "qwen2_5_vl", "ViTForImageClassification": "vit"}


def modules_of_nodes(graph):
    """Sequence number -> module of its first forward event, and of its last forward operator."""
    first, last = {}, {}
    for event in graph["events"]:
        if event[0] == "backward":
            break
        if event[0] == "save":
            first.setdefault(event[3], event[4])
        if event[0] == "op":
            first.setdefault(event[6], event[8])
            last[event[6]] = event[8]
    return first, last


def same_event(ours, theirs, ops, nodes):
    if ours == theirs:
        return True
    if ours[0] != "op" or theirs[0] != "op":
        return False
    ours, theirs = list(ours), list(theirs)
    first, last = nodes
    if ours[7] is not None and ours[8] == first.get(ours[6], ours[8]) and theirs[8] == last.get(theirs[6], 0):
        ours[8] = theirs[8]
    if "flash_attention_for_cpu" in ops[ours[1]] and theirs[5] == 0:
        ours[5] = 0
    return ours == theirs


def equal_to_reference(folder, case, name, dtype):
    reference = loaded(folder / case / name)
    words, point = reference_words(folder, case, dtype)
    ours = recorded(words, point)
    for key in (
        "modules",
        "owners",
        "parameters",
        "tied",
        "buffers",
        "inputs",
        "inputs_meta",
        "ops",
        "storages",
        "tensors",
    ):
        different = (
            [(mine, other) for mine, other in zip(ours[key], reference[key]) if mine != other]
            if isinstance(ours[key], list)
            else ours[key] != reference[key]
        )
        if different or len(ours[key]) != len(reference[key]):
            return f"{key} differ ({len(ours[key])} and {len(reference[key])}): {str(different)[:300]}"
    nodes = modules_of_nodes(reference)
    for index, (mine, other) in enumerate(zip(ours["events"], reference["events"])):
        if not same_event(mine, other, ours["ops"], nodes):
            return f"event {index}: {mine} and {other}"
    if len(ours["events"]) != len(reference["events"]):
        return f"{len(ours['events'])} and {len(reference['events'])} events"
    return None


def references(folder):
    for case in sorted(path.parent.name for path in folder.glob("*/graph.json.gz")):
        yield case, lambda case=case: equal_to_reference(folder, case, "graph.json.gz", "bfloat16")
        if (folder / case / "graph_fp32.json.gz").exists():
            yield (
                f"{case}_fp32",
                lambda case=case: equal_to_reference(folder, case, "graph_fp32.json.gz", "float32"),
            )


# ---- forms


def at(graph, point):
    """The program of a file at one shape, in plain integers."""
    products = []
    for name in graph["basis"]:
        value = 1
        for letter, power in letters(name):
            value *= point[letter] ** power
        products.append(value)

    def integer(row):
        total = sum(product * (c if isinstance(c, int) else c[0] / c[1]) for product, c in zip(products, row))
        assert total == int(total)
        return int(total)

    forms = [integer(row) for row in graph["forms"]]

    def plain(value):
        if isinstance(value, list):
            return [plain(item) for item in value]
        if isinstance(value, dict):
            return (
                forms[value["f"]] if list(value) == ["f"] else {name: plain(item) for name, item in value.items()}
            )
        return value

    return {key: plain(graph[key]) for key in ("inputs_meta", "storages", "tensors", "events")}


def letters(name):
    found = []
    for sign in name:
        if sign in "BSP":
            found.append([sign, 1])
        elif found:
            found[-1][1] = int(sign)
    return found


def predicted(case, point):
    """The small graph of the tests, at a shape that it was not made from, is the recording of that shape."""
    graph = loaded(SMALL / case / "graph.json.gz")
    ours = recorded(["--model", SMALL / case], point)
    there = at(graph, point)
    for key in there:
        wrong = (
            [(mine, other) for mine, other in zip(there[key], ours[key]) if mine != other]
            if isinstance(there[key], list)
            else there[key] != ours[key]
        )
        if wrong or len(there[key]) != len(ours[key]):
            return f"{key}: {str(wrong)[:300]}"
    return None


# ---- texts


def answer(words):
    """Exit status and the last line that the command prints."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, TREE / "tools/record_model.py", *map(str, words), "--out", f"{folder}/graph.json.gz"],
            capture_output=True,
            text=True,
        )
        lines = done.stderr.strip().splitlines() or [""]
        path = pathlib.Path(folder) / "graph.json.gz"
        return done.returncode, lines[-1].replace(folder + "/", ""), loaded(path) if path.exists() else None


def says(words, text, status=2):
    code, line, graph = answer(words)
    if code != status or text not in line or (graph is None) == (status == 0):
        return f"exit {code}, wanted {status}: {line!r}, wanted {text!r}"
    return None


def cast():
    """Cast inputs are copies inside the module: of the fp32 table, in place of those of the fp32 product."""
    words = ["--python", f"{MODELS}:fp32_table", "--batch", 2, "--sequence", 8]

    def copied(graph):
        return [
            graph["tensors"][event[2][0]][2]
            for event in graph["events"]
            if event[0] == "op"
            and graph["ops"][event[1]] == "aten._to_copy.default"
            and event[8] in (3, 4)
            and not event[7]
        ]

    found = [copied(answer([*words, *more])[2]) for more in ([], ["--cast-inputs-of", "blocks.{*}"])]
    return None if found == [[[2, 8, 8]] * 2, [[8]] * 2] else str(found)


def grouped_convolution():
    """Each of the two gradients of a depthwise convolution costs as much as its forward, 2 * 2 * 16 * 8 * 3."""
    graph = answer(["--python", f"{MODELS}:depthwise", "--batch", 2, "--sequence", 16])[2]
    found = {}
    for event in graph["events"]:
        if event[0] == "op" and "convolution" in graph["ops"][event[1]]:
            found[graph["ops"][event[1]]] = event[5]
    wanted = {"aten.convolution.default": 1536, "aten.convolution_backward.default": 2 * 1536}
    return None if found == wanted else str(found)


def chosen_rows():
    """A real mask chooses rows, forward and backward."""
    graph = answer(["--python", f"{MODELS}:chosen_rows", "--batch", 2, "--sequence", 8])[2]
    shapes = [
        graph["tensors"][event[3][0]][2]
        for event in graph["events"]
        if event[0] == "op" and graph["ops"][event[1]] == "aten.index.Tensor"
    ]
    return None if shapes == [[6, 8]] and any(event[0] == "grad" for event in graph["events"]) else str(shapes)


def own_cases():
    for case in ("tiny_qwen3", "tiny_gpt2", "tiny_llama", "tiny_internvl"):
        for point in ({"B": 5, "S": 224}, {"B": 7, "S": 97}):
            yield (
                f"{case} at B = {point['B']}, S = {point['S']}",
                lambda case=case, point=point: predicted(case, point),
            )
    qwen = ["--model", SMALL / "tiny_qwen3"]
    yield (
        "B = 1 beside others",
        lambda: says(
            [*qwen, "--batch", 1, 2],
            "--batch: B = 1 is another program than B = 2 and more; record it alone: --batch 1",
        ),
    )
    yield (
        "no such key",
        lambda: says(
            [*qwen, "--set", "layers=4"], "--set: the configuration has no key 'layers'; name a key of config.json"
        ),
    )
    yield (
        "no such class",
        lambda: says(
            [*qwen, "--class", "Qwen99"], "has no model class Qwen99; name one of its classes with --class"
        ),
    )
    yield (
        "no such file",
        lambda: says(
            ["--model", "absent.json"],
            "absent.json: No such file or directory; --model takes a config.json or the folder that has it",
        ),
    )
    mine = ["--batch", 2, "--sequence", 8]
    yield (
        "nonzero",
        lambda: says(
            ["--python", f"{MODELS}:chooses", *mine],
            "recording stopped in the model: "
            "DynamicOutputShapeException: aten.nonzero.default; which rows are chosen depends on values",
        ),
    )
    yield (
        "item",
        lambda: says(
            ["--python", f"{MODELS}:reads_a_value", *mine],
            "Python reads a value of a tensor; give that input as a real tensor",
        ),
    )
    yield "groups of odd width", lambda: says(["--python", f"{MODELS}:odd_groups", *mine], "multiple of 16 bytes, got 12; choose widths")
    yield (
        "another program at S >= 160",
        lambda: says(["--python", f"{MODELS}:branches"], "graph.json.gz: cannot be scaled: ", 0),
    )
    yield "casts", cast
    yield "grouped convolution", grouped_convolution
    yield "rows of a real mask", chosen_rows


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--graphs", type=pathlib.Path)
    parser.add_argument("cases", nargs="*")
    arguments = parser.parse_args()
    cases = [*(references(arguments.graphs) if arguments.graphs else []), *own_cases()]
    failed = passed = 0
    for name, case in cases:
        if arguments.cases and not any(name.startswith(wanted) for wanted in arguments.cases):
            continue
        try:
            problem = case()
        except Exception:
            problem = traceback.format_exc()
        failed, passed = failed + bool(problem), passed + (not problem)
        print(f"{name}: {problem or 'equal'}", flush=True)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
