"""The models and inputs of a recording: classes of transformers by their config.json, or a module of a Python file.

A model and its inputs are made inside the fake mode, so they have shapes and no values. Inputs whose values Python
reads (grids, ids among which it looks for pictures) are real: control inputs.
"""

import contextlib
import importlib.util
import inspect
import json
import math
import pathlib
import re

import torch

import graph_nodes

QWEN_VL = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe")
TILES = {"internvl": 151667, "mistral3": 10}  # pixel_values [pictures, channels, height, width]; the id of a picture


class RecordError(Exception):
    """A sentence for the user: what is wrong, and what to do."""


def error(where, found, advice):
    return RecordError(f"{where}: {found}; {advice}")


@contextlib.contextmanager
def told(what):
    """Whatever the code of a model throws inside becomes a sentence."""
    try:
        yield
    except RecordError:
        raise
    except Exception as problem:
        raise RecordError(f"{what}: {type(problem).__name__}: {first_line(problem)}") from problem


@contextlib.contextmanager
def without_initial_values():
    """Leaves out torch.nn.init: trunc_normal_ looks at what it drew (PyTorch 2.15), which no fake tensor has."""
    kept = {name: one for name, one in vars(torch.nn.init).items() if name.startswith("_no_grad_")}
    for name in kept:
        setattr(torch.nn.init, name, lambda tensor, *_, **__: tensor)
    try:
        yield
    finally:
        for name, one in kept.items():
            setattr(torch.nn.init, name, one)


# ---- transformers


class HuggingFaceModel:
    """A class of transformers with the inputs that its family takes."""

    def __init__(self, arguments):
        self.dtype = getattr(torch, arguments.dtype)
        self.config, self.where = read_config(arguments.model), arguments.model
        for setting in arguments.set:
            apply_setting(self.config, setting)
        if self.config.get("quantization_config"):
            raise error(
                self.where,
                "quantization_config: quantised weights cannot be recorded",
                "record the model without it",
            )
        self.class_name = arguments.class_name or first_architecture(self.config, self.where)
        self.experts = arguments.experts
        self.attention_is_node = arguments.attention == "node"
        self.images = arguments.image

    @property
    def takes_sequences(self):
        return self.family() != "image"

    def family(self):
        if self.config.get("model_type") in QWEN_VL and "vision_config" in self.config:
            return "qwen_vl"
        if self.config.get("model_type") in TILES and "vision_config" in self.config:
            return "tiles"
        name = self.model_class().main_input_name
        if name == "input_ids" and "vision_config" not in self.config:
            return "text"
        if name == "pixel_values" and "vision_config" not in self.config:
            return "image"
        raise error(
            self.where,
            f"{self.class_name}: inputs of this kind are not known here",
            "give a Python file with `inputs`: --python FILE.py:make_model",
        )

    def model_class(self):
        import transformers

        found = getattr(transformers, self.class_name, None)
        if found is None or not hasattr(found, "main_input_name"):
            raise error(
                self.where,
                f"transformers {transformers.__version__} has no model class {self.class_name}",
                "name one of its classes with --class",
            )
        return found

    def make(self):
        import transformers

        skip_packed_masks()
        model_type = self.config.get("model_type")
        rest = {name: value for name, value in self.config.items() if name != "model_type"}
        try:
            config = transformers.AutoConfig.for_model(model_type, **rest)
        except ValueError as problem:
            raise error(
                self.where,
                f"model_type {json.dumps(model_type)}: {first_line(problem)}",
                "use a model type of the installed transformers, or --python",
            ) from None
        made = self.model_class()
        if getattr(made, "_can_set_experts_implementation", lambda: False)():
            config._experts_implementation = self.experts or "grouped_mm"
        elif self.experts:
            raise error("--experts", f"{self.class_name} has no choice of them", "leave it out")
        self.built_config = config
        if self.attention_is_node:
            graph_nodes.replace_gated_delta(made)
        return made(config)

    def inputs(self, point):
        kind = self.family()
        if kind == "image":
            return self._picture_inputs(point["B"])
        ids = torch.zeros((point["B"], point["S"]), dtype=torch.int64)
        found = {"input_ids": ids, "labels": torch.zeros_like(ids)}
        if kind == "qwen_vl":
            found = self._qwen_vl_inputs(point, found["labels"])
        if kind == "tiles":
            found.update(point["control"], pixel_values=self._pixels(point["B"]))
        if "use_cache" in inspect.signature(self.model_class().forward).parameters or hasattr(
            self.built_config.get_text_config(), "use_cache"
        ):
            found["use_cache"] = False
        return found

    def _picture_inputs(self, batch):
        config = self.built_config
        height, width = self.images[0] if self.images else pair(getattr(config, "image_size", 224))
        channels = getattr(config, "num_channels", 3)
        return {
            "pixel_values": torch.zeros((batch, channels, height, width), dtype=self.dtype),
            "labels": torch.zeros(batch, dtype=torch.int64),
        }

    def _qwen_vl_inputs(self, point, labels):
        grid, ids = point["control"]["image_grid_thw"], point["control"]["input_ids"]
        vision = self.built_config.vision_config
        width = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
        return {
            "input_ids": ids,
            "pixel_values": torch.zeros((point["B"] * point["P"], width), dtype=self.dtype),
            "image_grid_thw": grid,
            "position_ids": torch.zeros((3, point["B"], point["S"]), dtype=torch.int64),
            "labels": labels,
        }

    # ---- pictures of one size, one a sequence (InternVL, Mistral 3)

    def _picture(self):
        """Height and width of a picture."""
        return self.images[0] if self.images else pair(self._vision("image_size", 448))

    def _pixels(self, batch):
        channels = getattr(self.built_config.vision_config, "num_channels", 3)
        return torch.zeros((batch, channels, *self._picture()), dtype=self.dtype)

    def _tile_tokens(self):
        """Tokens of a picture: patches of a side, over those that become one token."""
        patch = pair(self._vision("patch_size", 14))
        if self.config["model_type"] == "internvl":
            merged = round(1 / self.config.get("downsample_ratio", 0.5))
        else:
            merged = self.config.get("spatial_merge_size", 2)
        sides = [(side, merged * unit) for side, unit in zip(self._picture(), patch)]
        for side, unit in sides:
            if side % unit:
                raise error(
                    "--image",
                    f"{' x '.join(map(str, self._picture()))} is no multiple of {unit}",
                    "give sides that are: a patch's side times the merged patches",
                )
        return math.prod(side // unit for side, unit in sides)

    def _tile_control(self, point):
        found = {"input_ids": self._ids_with_picture(point, self._tile_tokens(), self._picture_id())}
        if "image_sizes" in inspect.signature(self.model_class().forward).parameters and (
            self.config["model_type"] == "mistral3"
        ):
            found["image_sizes"] = torch.tensor([self._picture()] * point["B"])
        return found

    def _picture_id(self):
        model_type = self.config["model_type"]
        return self.config.get("image_token_id", self.config.get("image_token_index", TILES[model_type]))

    # ---- pictures of Qwen-VL

    def patches(self):
        """The numbers of patches of a picture, by --image: one symbol P."""
        family = self.family()
        if self.images and family == "text" or len(self.images) > 1 and family in ("image", "tiles"):
            raise error(
                "--image",
                f"{self.class_name} takes " + ("no pictures" if family == "text" else "one size"),
                "leave it out" if family == "text" else "give one",
            )
        if family != "qwen_vl":
            return []
        if not self.images:
            raise error(
                self.where, f"{self.class_name} takes pictures", "give their height and width: --image 448 448"
            )
        return [math.prod(self._grid(image)) for image in self.images]

    def least(self):
        """A sequence holds its picture."""
        if self.family() == "tiles":
            return {"S": self._tile_tokens()}
        return {"S": max(self._tokens(patches) for patches in self.patches())} if self.patches() else {}

    def _tokens(self, patches):
        return patches // self._vision("spatial_merge_size", 2) ** 2

    def _vision(self, key, default):
        return self.config["vision_config"].get(key, default)

    def _grid(self, image):
        patch = self._vision("patch_size", 16 if self.config["model_type"].startswith("qwen3") else 14)
        merged = patch * self._vision("spatial_merge_size", 2)
        if any(side % merged for side in image):
            raise error(
                "--image",
                f"{image[0]} x {image[1]} is no multiple of {merged}",
                "give sides that are: a patch's side times the merged patches",
            )
        return image[0] // patch, image[1] // patch

    def control(self, point):
        """Real ids, among which the model looks for pictures, and grids or sizes, whose values it reads."""
        if self.family() == "tiles":
            return self._tile_control(point)
        if self.family() != "qwen_vl":
            return {}
        image = self.images[self.patches().index(point["P"])]
        ids = self._ids_with_picture(point, self._tokens(point["P"]), self.config["image_token_id"])
        grid = torch.tensor([[1, *self._grid(image)]] * point["B"])
        return {"input_ids": ids, "image_grid_thw": grid}

    def _ids_with_picture(self, point, tokens, picture_id):
        if tokens > point["S"]:
            raise error(
                "--sequence",
                f"{point['S']} tokens cannot hold the {tokens} of one picture",
                "give longer sequences or a smaller --image",
            )
        ids = torch.zeros((point["B"], point["S"]), dtype=torch.int64)
        ids[:, :tokens] = picture_id
        return ids


def pair(size):
    return tuple(size) if isinstance(size, (list, tuple)) else (size, size)


def read_config(path):
    file = pathlib.Path(path)
    if file.is_dir():
        file = file / "config.json"
    try:
        config = json.loads(file.read_text())
    except OSError as problem:
        raise error(file, problem.strerror, "--model takes a config.json or the folder that has it") from None
    except ValueError as problem:
        raise error(file, f"no JSON: {problem}", "--model takes a config.json or the folder that has it") from None
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise error(file, "there is no model_type", "--model takes the config.json of a model of transformers")
    return config


def apply_setting(config, setting):
    """KEY=VALUE, dots between nested keys; VALUE is JSON, or else a string."""
    key, equals, text = setting.partition("=")
    if not equals:
        raise error("--set", f"{setting!r} has no '='", "write --set num_hidden_layers=4")
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    *outer, last = key.split(".")
    for name in outer:
        config = config.get(name)
        if not isinstance(config, dict):
            raise error("--set", f"{key!r}: the configuration has no section {name!r}", "name a key of config.json")
    if last not in config:
        raise error("--set", f"the configuration has no key {key!r}", "name a key of config.json")
    config[last] = value
    if last == "num_hidden_layers" and isinstance(config.get("layer_types"), list):
        config["layer_types"] = config["layer_types"][:value]


def first_architecture(config, where):
    names = config.get("architectures") or []
    if not names:
        raise error(where, "there are no architectures", "name the class: --class Qwen3ForCausalLM")
    return names[0]


def skip_packed_masks():
    """On fake tensors transformers looks for packed sequences and makes a mask that training does not have."""
    import transformers.masking_utils

    transformers.masking_utils.find_packed_sequence_indices = lambda position_ids: None


# ---- a Python file


class PythonModel:
    """FILE.py:FUNCTION: the function makes the module; `inputs(batch, sequence)` of the file gives the keyword
    arguments of its forward, `control(batch, sequence)`, if there is one, those that must be real tensors."""

    takes_sequences = True

    def __init__(self, arguments):
        for flag, value in (
            ("--class", arguments.class_name),
            ("--set", arguments.set),
            ("--image", arguments.image),
            ("--experts", arguments.experts),
        ):
            if value:
                raise error(flag, "it goes with --model", "write it into the Python file")
        path, colon, function = arguments.python.rpartition(":")
        if not colon or not path.endswith(".py"):
            raise error(
                "--python", repr(arguments.python), "write FILE.py:FUNCTION, the function that makes the model"
            )
        if not pathlib.Path(path).is_file():
            raise error("--python", f"there is no file {path}", "write FILE.py:FUNCTION")
        spec = importlib.util.spec_from_file_location("recorded_model", path)
        self.file = importlib.util.module_from_spec(spec)
        with told(path):
            spec.loader.exec_module(self.file)
        for name in (function, "inputs"):
            if not callable(getattr(self.file, name, None)):
                raise error(
                    path,
                    f"there is no function {name}",
                    f"define {name}"
                    + (
                        ""
                        if name == function
                        else "(batch, sequence), which returns the keyword arguments of forward"
                    ),
                )
        self.make = getattr(self.file, function)
        self.class_name = None

    def patches(self):
        return []

    def least(self):
        return {}

    def control(self, point):
        function = getattr(self.file, "control", None)
        with told("control"):
            return function(point["B"], point["S"]) if function else {}

    def inputs(self, point):
        return {**self.file.inputs(point["B"], point["S"]), **point["control"]}


# ---- what is done to every model


def cast_parameters(model, dtype):
    """Parameters in the compute dtype, tied ones still tied; buffers as they are."""
    made = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and parameter.is_floating_point():
                if parameter not in made:
                    made[parameter] = torch.nn.Parameter(parameter.detach().to(dtype), parameter.requires_grad)
                module._parameters[name] = made[parameter]


def selected(model, pattern):
    """The modules of a pattern of fsdp2_config.yaml: a path with {*} or {0-3,8}, or a class name."""
    wanted = pattern_expression(pattern)
    found = [module for path, module in model.named_modules() if path and wanted.fullmatch(path)]
    if not found:
        found = [module for module in model.modules() if type(module).__name__ == pattern.rpartition(".")[2]]
    if not found:
        raise error(
            "--cast-inputs-of",
            f"{pattern!r} matches no module",
            "write a module's path, with {*} for the entries of a list, or a class",
        )
    return found


def pattern_expression(pattern):
    head, brace, rest = pattern.partition("{")
    if not brace:
        return re.compile(re.escape(pattern))
    inside, _, tail = rest.partition("}")
    if inside == "*":
        return re.compile(re.escape(head) + r"\d+" + re.escape(tail))
    indices = set()
    for part in inside.split(","):
        if not re.fullmatch(r"\d+(-\d+)?", part):
            raise error(
                "--cast-inputs-of", f"{pattern!r}: {part!r} is no index and no range", "write {*} or {0-3,8}"
            )
        first, _, last = part.partition("-")
        indices.update(range(int(first), int(last or first) + 1))
    return re.compile(
        re.escape(head) + "(" + "|".join(str(index) for index in sorted(indices)) + ")" + re.escape(tail)
    )


def cast_inputs_of(model, patterns, dtype):
    """Floating inputs of these modules in the compute dtype, as FSDP casts the inputs of a module that it wraps."""

    def cast(value):
        return value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value

    def before(module, arguments, named):
        return tuple(map(cast, arguments)), {name: cast(value) for name, value in named.items()}

    for pattern in patterns:
        for module in selected(model, pattern):
            module.register_forward_pre_hook(before, with_kwargs=True)


def loss_of(output):
    """The model's own loss, or the fp32 sum of its first floating output; with the word for the file."""
    if isinstance(output, torch.Tensor) and output.dim() == 0:
        return output, "model"
    loss = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
    if loss is not None:
        return loss, "model"
    leaves = torch.utils._pytree.tree_flatten(output)[0]
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
            return leaf.float().sum(), "sum"
    raise error("the model", "its forward returns no floating tensor", "return a loss or an output")


def first_line(problem):
    return (str(problem).strip().splitlines() or [type(problem).__name__])[0].rstrip(".")
