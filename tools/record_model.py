#!/usr/bin/env python3
"""Records one training step of a PyTorch model for `shardloom plan --model-graph`: no GPU, no weights.

usage: record_model.py --model CONFIG --batch 2 3 --sequence 96 160 224 --out FILE.json.gz

The model runs once per shape on fake tensors, forward and backward. With several shapes each integer that depends on
them is fitted exactly and verified on one more recording, so that the file holds any shape; see docs/model-graphs.md.
Needs torch and transformers. Ends with 0, or with 2 and a sentence.
"""

import argparse
import itertools
import logging
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

DTYPES = ("bfloat16", "float16", "float32")


def read_arguments(words):
    parser = argparse.ArgumentParser(prog="record_model.py", description=__doc__.split("\n\n")[0])
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--model", metavar="CONFIG", help="config.json of a model of transformers, or its folder")
    source.add_argument("--python", metavar="FILE.py:FUNCTION", help="a function that makes any nn.Module")
    parser.add_argument(
        "--class",
        dest="class_name",
        metavar="NAME",
        help="class of transformers (default: the first of the configuration's architectures)",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="another value of the configuration (num_hidden_layers=4, text_config.vocab_size=512)",
    )
    parser.add_argument(
        "--batch",
        type=positive,
        nargs="+",
        default=[2, 3],
        metavar="B",
        help="sequences or pictures of a rank; one value fixes it (default: 2 3)",
    )
    parser.add_argument(
        "--sequence",
        type=positive,
        nargs="+",
        metavar="S",
        help="tokens of a sequence; one value fixes it (default: 96 160 224)",
    )
    parser.add_argument(
        "--image",
        type=positive,
        nargs=2,
        action="append",
        default=[],
        metavar=("H", "W"),
        help="height and width of a picture in pixels; again for another size",
    )
    parser.add_argument(
        "--verify",
        type=positive,
        nargs=2,
        metavar=("B", "S"),
        help="the shape that verifies the fit (default: two more than the largest batch, an odd length)",
    )
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16", help="of parameters and floating inputs")
    parser.add_argument(
        "--attention",
        choices=("node", "native"),
        default="node",
        help="scaled_dot_product_attention as the device's one kernel, or as this machine's",
    )
    parser.add_argument("--norm", choices=("node", "decomposed"), default="node", help="the same for rms_norm")
    parser.add_argument(
        "--experts",
        choices=("grouped_mm", "batched_mm", "eager"),
        help="transformers' way to compute experts (default: grouped_mm)",
    )
    parser.add_argument(
        "--cast-inputs-of",
        nargs="+",
        default=[],
        metavar="PATTERN",
        help="modules whose floating inputs FSDP will cast: the patterns of sub_modules_to_wrap",
    )
    parser.add_argument("--out", required=True, metavar="FILE", help="the file to write; gzip if it ends in .gz")
    return parser.parse_args(words)


def positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not above 0")
    return value


SEQUENCES = (96, 160, 224)


def grid(arguments, source):
    """The shapes to record. The last verifies the fit; a single shape needs none."""
    from graph_forms import place
    from graph_models import error

    batches = sorted(set(arguments.batch))
    if len(batches) > 1 and batches[0] == 1:
        raise error("--batch", "B = 1 is another program than B = 2 and more", "record it alone: --batch 1")
    values = {"B": batches}
    if source.takes_sequences:
        values["S"] = sorted(set(arguments.sequence or SEQUENCES))
    elif arguments.sequence:
        raise error("--sequence", f"{source.class_name} takes no sequences", "leave it out")
    patches = source.patches()
    if patches:
        values["P"] = sorted(set(patches))
    points = [dict(zip(values, point)) for point in itertools.product(*values.values())]
    if len(points) > 1:
        points.append(verifying_point(values, arguments.verify))
        if points[-1] in points[:-1]:
            raise error(
                "--verify", f"{place(points[-1])} is one of the shapes that are fitted", "give another shape"
            )
        if any(len(one) == 1 and points[-1][letter] != one[0] for letter, one in values.items()):
            raise error("--verify", f"{place(points[-1])} changes what has one value", "verify with that value")
    elif arguments.verify:
        raise error("--verify", "there is one shape, so nothing is fitted", "leave it out")
    return points


def verifying_point(values, verify):
    point = {letter: one[-1] for letter, one in values.items()}
    if verify:
        point.update(zip(point, verify))
        return point
    if len(values["B"]) > 1:
        point["B"] += 2
    if len(values.get("S", [])) > 1:
        middle = (values["S"][0] + values["S"][-1]) // 2 + 1
        point["S"] = middle if middle not in values["S"] else middle + 1
    return point


def record(arguments, source, point):
    """One recording at one shape."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    import graph_models as models
    from graph_nodes import DeviceKernels
    from graph_recorder import Recorder

    logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)  # the sentence says it
    dtype = getattr(torch, arguments.dtype)
    fake_mode = FakeTensorMode(allow_non_fake_inputs=True)
    point = {**point, "control": source.control(point)}
    with fake_mode, models.told("the model cannot be made on fake tensors"), models.without_initial_values():
        model = source.make()
        model.train()
        models.cast_parameters(model, dtype)
        models.cast_inputs_of(model, arguments.cast_inputs_of, dtype)
    with fake_mode, models.told("its inputs cannot be made"):
        inputs = source.inputs(point)
    recorder = Recorder(model, inputs, fake_mode)
    recorder.class_name = type(model).__name__

    def step(recorder):
        with DeviceKernels(arguments.attention == "node", arguments.norm == "node"):
            output = model(**inputs)
            loss, recorder.loss = models.loss_of(output)
            if loss.grad_fn is None:
                raise models.error(
                    "the model", "its loss depends on no trained parameter", "record it as it is trained"
                )
            recorder.event("loss", recorder.describe(loss))
            return loss

    try:
        recorder.record(model, step)
    except Exception as problem:
        raise models.RecordError(reason(problem, recorder)) from problem
    return recorder


def reason(problem, recorder):
    """The sentence for what stopped a recording: where, what, and what to do."""
    from graph_models import RecordError, first_line

    if isinstance(problem, RecordError):
        return str(problem)
    where = f"recording stopped in {recorder.place_name()}"
    text = f"{type(problem).__name__}: {first_line(problem)}"
    for part, advice in ADVICE:
        if part in text:
            return f"{where}: {text}; {advice}"
    return f"{where}: {text}; a step that runs on real tensors may still use operators that have no fake kernel"


ADVICE = (
    (
        "aten.nonzero",
        "which rows are chosen depends on values; compute experts with --experts grouped_mm, or write the choice "
        "without nonzero",
    ),
    ("repeat_interleave", "Python reads the lengths; give them as real tensors (`control` of the Python file)"),
    ("multiple of 16 bytes", "choose widths of experts that are multiples of 8 (16 bytes in bf16)"),
    (
        "aten._local_scalar_dense",
        "Python reads a value of a tensor; give that input as a real tensor (`control` of the Python "
        "file), or leave the branch out",
    ),
    (
        "DynamicOutputShapeException",
        "a shape depends on values; give the input behind it as a real tensor (`control` of the Python file)",
    ),
    (
        "DataDependentOutputException",
        "Python reads a value of a tensor; give that input as a real tensor (`control` of the Python file)",
    ),
    ("data_ptr", "the model reads memory, and fake tensors have none; use PyTorch's own operators there"),
)


def write_graph(arguments, source, points):
    import graph_file
    import torch

    from graph_forms import Fit, NotScalable

    recordings = [record(arguments, source, point) for point in points]
    fit = Fit(points) if len(points) > 1 else None
    shapes = points[:-1] if fit else points
    try:
        program = graph_file.program(recordings, points, fit)
    except NotScalable as problem:
        fit, shapes = None, points[:1]
        program = graph_file.program(recordings[:1], shapes, None)
        print(
            f"{arguments.out}: cannot be scaled: {problem}; the file holds only the shape that was recorded first "
            f"({graph_file.place(points[0])})",
            file=sys.stderr,
        )
    first = recordings[0]
    graph = {
        "format": graph_file.FORMAT,
        "version": graph_file.VERSION,
        "torch": torch.__version__,
        "class": first.class_name,
        "compute_dtype": arguments.dtype,
        "attention": arguments.attention,
        "norm": arguments.norm,
        "loss": first.loss,
        "casts": arguments.cast_inputs_of,
        "symbols": graph_file.symbols(shapes, source.least()),
    }
    if fit:
        graph.update({"verified": points[-1], "basis": fit.basis, "forms": fit.forms})
    graph.update(program)
    graph_file.write(arguments.out, graph)
    print(
        f"{arguments.out}: {first.class_name}, {len(graph['events'])} events, {len(graph['modules'])} modules, "
        f"{len(graph['storages'])} storages, {len(fit.forms) if fit else 0} forms of {len(points)} recordings"
    )


def main(words):
    arguments = read_arguments(words)
    try:
        import torch  # noqa: F401

        if arguments.model:
            import transformers  # noqa: F401
    except ImportError as problem:
        print(f"record_model.py: {problem}; install it: pip install torch transformers", file=sys.stderr)
        return 2
    import graph_file
    import graph_models as models

    try:
        graph_file.probe(arguments.out)
        source = models.HuggingFaceModel(arguments) if arguments.model else models.PythonModel(arguments)
        write_graph(arguments, source, grid(arguments, source))
    except models.RecordError as problem:
        print(f"record_model.py: {problem}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
