"""One step of a PyTorch model, recorded on fake tensors: what docs/model-graphs.md calls a recording.

A recording is raw: its events hold tensors as descriptions, not as ids. graph_file.py makes the tables of a file of one
recording or of several.

Ownership  the recorder owns no tensor of the step. With a reference more, autograd would copy gradients that it steals,
           and storages would die later than in training.
Threads    one; the autograd engine runs a CPU backward in the thread that calls it.
"""

import contextlib
import gc
import math
import weakref

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from graph_flops import flops_of

# Integer and boolean tensors up to this size are computed for real, so that Python may read them.
REAL_FACTORY_ELEMENTS = 4 << 20
NO_SEQUENCE = 2**64 - 1  # the number of AccumulateGrad nodes


def dtype_name(dtype):
    return str(dtype).removeprefix("torch.")


class Kept:
    """What autograd keeps in place of a saved tensor. When its node lets it go, the recording gets a drop.

    A real tensor leaves a copy of its values: backward may ask which rows a mask chooses.
    """

    def __init__(self, recorder, number, tensor, storage):
        self.recorder = recorder
        self.number = number
        self.storage = storage
        self.values = None if isinstance(tensor, FakeTensor) else copied(tensor)
        self.layout = (tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()), tensor.storage_offset())

    def __del__(self):
        self.recorder.event("drop", self.number)


class Recorder(TorchDispatchMode):
    """Records the operators, storages, modules and saved tensors of one forward and backward of `model`.

    model, inputs  built inside `fake_mode`; control inputs may be real tensors.
    storages       [bytes, kind, name] in order of appearance.
    events         as in the file, with a description (storage, dtype, shape, strides, offset) for each tensor.
    """

    def __init__(self, model, inputs, fake_mode):
        super().__init__()
        self.fake_mode = fake_mode
        self.storages = []
        self.events = []
        self.recording = False
        self.backward = False
        self.live = {}  # address of a storage -> its number
        self.holders = {}  # number of a storage -> storages of the process that stand for it now
        self.finalizers = {}
        self.lasting = {}  # number of a storage of the model or its inputs -> a tensor that spans it
        self.saves = 0
        self.calls = {}
        self.stack = []
        self.last_module = 0
        self.module_of_sequence = {}
        self.node_name = None
        self.node_sequence = None
        self._describe_model(model)
        self._describe_inputs(inputs)

    # ---- the model and its inputs

    def _describe_model(self, model):
        named = list(model.named_modules())
        self.modules = [[name, type(module).__name__] for name, module in named]
        self.module_ids = {id(module): index for index, (_, module) in enumerate(named)}
        self.aliases = aliases_of(model, {id(module): name for name, module in named})
        self.parameters, self.tied, self.owners = [], {}, {}
        first = {}
        for index, (path, module) in enumerate(named):
            for key, parameter in module._parameters.items():
                if parameter is None:
                    continue
                name = f"{path}.{key}" if path else key
                address = parameter.untyped_storage()._cdata
                if address in first:
                    self.tied[name] = first[address]
                    continue
                first[address] = name
                self._add_storage(parameter, "parameter", name)
                self.owners[len(self.parameters)] = index
                self.parameters.append([name, self.describe(parameter), parameter.requires_grad])
        self.buffers = []
        for name, buffer in model.named_buffers():
            self._add_storage(buffer, "buffer", name)
            self.buffers.append([name, self.describe(buffer)])

    def _describe_inputs(self, inputs):
        self.inputs, self.inputs_meta = {}, {}
        for name, value in inputs.items():
            if not isinstance(value, torch.Tensor):
                self.inputs[name] = {"value": plain_value(value)}
                continue
            kind = "data" if isinstance(value, FakeTensor) else "control"
            self._add_storage(value, "input", name)
            self.inputs[name] = self.describe(value)
            self.inputs_meta[name] = [tuple(value.shape), dtype_name(value.dtype), kind]

    def _add_storage(self, tensor, kind, name):
        if tensor.untyped_storage()._cdata not in self.live:
            number = self._storage(tensor, kind, name)
            self.lasting[number] = tensor.detach()

    # ---- storages and tensors

    def _storage(self, tensor, kind="temporary", name=None):
        """The number of the tensor's storage; a storage that was not seen before gets the next one."""
        storage = tensor.untyped_storage()
        number = self.live.get(storage._cdata)
        if number is None:
            number = len(self.storages)
            self.storages.append([storage.nbytes(), kind, name])
            self._hold(storage, number)
        return number

    def _hold(self, storage, number):
        address = storage._cdata
        self.live[address] = number
        self.holders[number] = self.holders.get(number, 0) + 1
        self.finalizers[address] = weakref.ref(storage, lambda _: self._died(address, number))

    def _died(self, address, number):
        del self.live[address]
        del self.finalizers[address]
        self.holders[number] -= 1
        if self.holders[number] == 0:
            self.event("free", number)

    def describe(self, tensor):
        return (
            self._storage(tensor),
            dtype_name(tensor.dtype),
            tuple(tensor.shape),
            tuple(tensor.stride()),
            tensor.storage_offset(),
        )

    def event(self, *fields):
        if self.recording:
            self.events.append(fields)

    @contextlib.contextmanager
    def paused(self):
        before, self.recording = self.recording, False
        try:
            yield
        finally:
            self.recording = before

    # ---- modules

    def _enter(self, module, arguments):
        index = self.module_ids.get(id(module))
        if index is None or not self.recording:
            return
        call = self.calls.get(index, 0)
        self.calls[index] = call + 1
        self.stack.append(index)
        self.event("enter", index, call, self._tensors(arguments))

    def _exit(self, module, arguments, result):
        index = self.module_ids.get(id(module))
        if index is None or not self.recording:
            return
        self.stack.pop()
        self.event("exit", index, self._tensors(result))

    def _tensors(self, tree):
        return [self.describe(leaf) for leaf in tree_flatten(tree)[0] if isinstance(leaf, torch.Tensor)]

    def _module(self):
        return self.stack[-1] if self.stack else 0

    def place_name(self):
        """The module of the last operator, for messages."""
        path = self.modules[self.last_module][0]
        return ("the backward of " if self.backward else "") + (path or "the model")

    def _sequence(self):
        """The number of the node that autograd made last; its own count starts with the process."""
        return torch._C._autograd._get_sequence_nr() - 1 - self.first_sequence

    def _forward_place(self):
        sequence, module = self._sequence(), self._module()
        self.module_of_sequence.setdefault(sequence, module)
        return sequence, module

    # ---- saved tensors

    def _pack(self, tensor):
        sequence, module = self._forward_place()
        number = self.saves
        self.saves += 1
        self.event("save", number, self.describe(tensor), sequence, module)
        return Kept(self, number, tensor, self._storage(tensor))

    def _unpack(self, kept):
        self.event("unpack", kept.number)
        dtype, shape, strides, offset = kept.layout
        with self.paused(), torch.no_grad():
            lasting = self.lasting.get(kept.storage)
            if lasting is not None:
                return torch.as_strided(lasting.view(dtype), shape, strides, offset)
            if kept.values is not None:
                fresh = copied(kept.values)
                self._hold(fresh.untyped_storage(), kept.storage)
                return fresh
            with self.fake_mode:
                elements = -(-self.storages[kept.storage][0] // dtype.itemsize)
                fresh = torch.empty(elements, dtype=dtype)
                self._hold(fresh.untyped_storage(), kept.storage)
                return torch.as_strided(fresh, shape, strides, offset)

    # ---- operators

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        named = named or {}
        leaves = [leaf for leaf in tree_flatten((arguments, named))[0] if isinstance(leaf, torch.Tensor)]
        if not self.recording or function.namespace == "prim" or function is torch.ops.aten.detach.default:
            return self._run(function, leaves, arguments, named)
        sequence, node, module = self._place()
        self.last_module = module
        inputs = [self.describe(leaf) for leaf in leaves]
        result = self._run(function, leaves, arguments, named)
        outputs = self._tensors(result)
        self.event(
            "op",
            str(function),
            inputs,
            outputs,
            plain_arguments(arguments, named),
            flops_of(function, arguments, named, result),
            sequence,
            node,
            module,
            writes(function, arguments),
        )
        return result

    def _place(self):
        """Sequence number, node and module of the operator that runs now."""
        if not self.backward:
            sequence, module = self._forward_place()
            return sequence, None, module
        node = torch._C._current_autograd_node()
        if node is not None and node._sequence_nr() != NO_SEQUENCE:
            self.node_name, self.node_sequence = node.name(), node._sequence_nr() - self.first_sequence
        if self.node_name is None:
            return self._sequence(), None, 0
        return self.node_sequence, self.node_name, self._module_of_node(self.node_sequence)

    def _module_of_node(self, sequence):
        """Of the first event that saw the number; for a node that no event saw, of the last event before it."""
        if sequence not in self.module_of_sequence:
            earlier = [number for number in self.module_of_sequence if number < sequence]
            self.module_of_sequence[sequence] = self.module_of_sequence[max(earlier)] if earlier else 0
        return self.module_of_sequence[sequence]

    def _run(self, function, leaves, arguments, named):
        fake = any(isinstance(leaf, FakeTensor) for leaf in leaves)
        if not fake and (leaves or small_integer_factory(function, arguments, named)):
            with unset_fake_temporarily():
                return function(*arguments, **named)
        if function in INDEXED:
            arguments = (arguments[0], rows_of_masks(arguments[1]), *arguments[2:])
        return function(*arguments, **named)

    # ---- one step

    def record(self, model, step):
        """Records `step(self)`, which returns the loss and says when it has it, and the backward of that loss."""
        self.first_sequence = torch._C._autograd._get_sequence_nr()
        handles = [
            torch.nn.modules.module.register_module_forward_pre_hook(self._enter),
            torch.nn.modules.module.register_module_forward_hook(self._exit, always_call=True),
            *self._watch_parameters(model),
        ]
        gc.collect()
        gc.disable()
        try:
            with self.fake_mode, self:
                self.recording = True
                with torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack):
                    loss = step(self)
                self._watch_nodes(loss)
                self.event("backward")
                self.backward = True
                loss.backward()
                self.event("end")
                self.recording = False
        finally:
            self.recording = False
            gc.enable()
            for handle in handles:
                handle.remove()

    def _watch_parameters(self, model):
        names = {}
        for name, parameter in model.named_parameters():
            names.setdefault(parameter.untyped_storage()._cdata, name)
        return [
            parameter.register_post_accumulate_grad_hook(self._grad_hook(names[parameter.untyped_storage()._cdata]))
            for parameter in model.parameters()
            if parameter.requires_grad
        ]

    def _grad_hook(self, name):
        return lambda parameter: self.event("grad", name, self.describe(parameter.grad))

    def _watch_nodes(self, loss):
        """Puts hooks on every node of the graph."""
        seen, waiting = set(), [loss.grad_fn]
        while waiting:
            node = waiting.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            waiting.extend(next_node for next_node, _ in node.next_functions)
            if node._sequence_nr() != NO_SEQUENCE:
                node.register_hook(self._node_hook(node._sequence_nr() - self.first_sequence, node.name()))

    def _node_hook(self, sequence, name):
        return lambda grad_inputs, grad_outputs: self.event("node", sequence, name)


# Their second argument is a list of indices.
INDEXED = (
    torch.ops.aten.index.Tensor,
    torch.ops.aten.index_put.default,
    torch.ops.aten.index_put_.default,
    torch.ops.aten._index_put_impl_.default,
)


def copied(tensor):
    """A copy of a real tensor, none of which the recording sees."""
    with unset_fake_temporarily(), torch._C._DisableTorchDispatch():
        return tensor.detach().clone()


def rows_of_masks(indices):
    """Indices in place of the real masks among them, since fake tensors do not know how many rows a mask chooses."""
    found = []
    for index in indices:
        if index is None or isinstance(index, FakeTensor) or index.dtype not in (torch.bool, torch.uint8):
            found.append(index)
            continue
        with unset_fake_temporarily():
            found.extend(index.nonzero().unbind(1))
    return found


def aliases_of(model, names):
    """Properties of the model's class that are its modules: other paths, which files of patterns may use."""
    found = {}
    for name, attribute in sorted(vars(type(model)).items()):
        if not isinstance(attribute, property):
            continue
        try:
            path = names.get(id(getattr(model, name)))
        except Exception:
            continue  # a property that this model does not have
        if path and path != name:
            found[name] = path
    return found


def small_integer_factory(function, arguments, named):
    """A factory of integers or booleans that is small enough to be made for real."""
    with unset_fake_temporarily():
        meta = dict(named)
        meta["device"] = "meta"
        try:
            made = function(*arguments, **meta)
        except (RuntimeError, TypeError, NotImplementedError):
            return False
    return (
        isinstance(made, torch.Tensor)
        and not made.dtype.is_floating_point
        and not made.dtype.is_complex
        and made.numel() <= REAL_FACTORY_ELEMENTS
    )


def plain_arguments(arguments, named):
    """The arguments that are no tensors; inside lists a tensor leaves a "T"."""
    plain = [plain_value(value) for value in arguments if not isinstance(value, torch.Tensor)]
    kept = {name: plain_value(value) for name, value in named.items() if not isinstance(value, torch.Tensor)}
    return plain + [kept] if kept else plain


def plain_value(value):
    if isinstance(value, torch.Tensor):
        return "T"
    if isinstance(value, (list, tuple)):
        return [plain_value(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return str(value)


def writes(function, arguments):
    """Positions of the arguments that the operator changes in place."""
    written = [
        index
        for index, argument in enumerate(function._schema.arguments)
        if argument.alias_info is not None
        and argument.alias_info.is_write
        and index < len(arguments)
        and isinstance(arguments[index], torch.Tensor)
    ]
    return {"writes": written} if written else {}
