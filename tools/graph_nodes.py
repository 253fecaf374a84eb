"""One kernel on the device is one node in the recording.

On a machine without the device, PyTorch takes kernels of its own: the CPU's flash attention, or rms_norm in fp32 steps
that save more. DeviceKernels puts a node in their place that saves what the device's kernel saves:

  rec.sdpa       query, key, value, output, fp32 log-sum-exp [..., heads, rows], and the mask if there is one. The
                 output lies in memory as the query does.
  rec.rms_norm   input, weight, fp32 reciprocal root per row.
  rec.gated_delta  query, key, value, decay, beta, fp32 reciprocal lengths of queries and keys, fp32 sums of the decay,
                 and [chunk, chunk] per head and chunk of 64 rows. transformers' own steps write into slices, chunk by
                 chunk, and keep the state of each.
  native_dropout the bool mask; on a CPU dropout would be three operators and a mask of the input's dtype.
"""

import sys

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

library = torch.library.Library("rec", "DEF")
library.define(
    "sdpa(Tensor query, Tensor key, Tensor value, Tensor? mask, float dropout, bool causal) -> (Tensor, Tensor)"
)
library.define(
    "sdpa_backward(Tensor grad, Tensor query, Tensor key, Tensor value, Tensor out, Tensor logsumexp, "
    "Tensor? mask, float dropout, bool causal) -> (Tensor, Tensor, Tensor)"
)
library.define(
    "sdpa_backward.mask(Tensor grad, Tensor query, Tensor key, Tensor value, Tensor out, Tensor logsumexp, "
    "Tensor mask, float dropout, bool causal) -> (Tensor, Tensor, Tensor, Tensor)"
)
library.define("rms_norm(Tensor input, Tensor? weight, int dims) -> (Tensor, Tensor)")
library.define("rms_norm_backward(Tensor grad, Tensor input, Tensor weight, Tensor rstd) -> (Tensor, Tensor)")
library.define("rms_norm_backward.plain(Tensor grad, Tensor input, Tensor rstd) -> Tensor")
library.define(
    "gated_delta(Tensor query, Tensor key, Tensor value, Tensor decay, Tensor beta) -> (Tensor, Tensor, Tensor, Tensor)"
)
library.define(
    "gated_delta_backward(Tensor grad, Tensor query, Tensor key, Tensor value, Tensor decay, Tensor beta, "
    "Tensor rlength, Tensor sums, Tensor inner) -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)
CHUNK = 64  # rows of a chunk of the gated delta rule


def implementation(name):
    return torch.library.register_fake(f"rec::{name}", lib=library)


def laid_out_as(pattern, shape):
    """An empty tensor of `shape` with its dimensions in memory in the order of `pattern`'s; the last is innermost."""
    outer = range(pattern.dim() - 1)
    order = sorted(outer, key=lambda dim: -pattern.stride(dim)) + [pattern.dim() - 1]
    dense = pattern.new_empty([shape[dim] for dim in order])
    return dense.permute([order.index(dim) for dim in range(pattern.dim())])


@implementation("sdpa")
def _(query, key, value, mask, dropout, causal):
    out = laid_out_as(query, (*query.shape[:-1], value.shape[-1]))
    return out, query.new_empty(query.shape[:-1], dtype=torch.float32)


@implementation("sdpa_backward")
def _(grad, query, key, value, out, logsumexp, mask, dropout, causal):
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


@implementation("sdpa_backward.mask")
def _(grad, query, key, value, out, logsumexp, mask, dropout, causal):
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value), torch.empty_like(mask)


@implementation("rms_norm")
def _(input, weight, dims):
    rows = input.shape[: input.dim() - dims]
    out = torch.empty_like(input, memory_format=torch.contiguous_format)
    return out, input.new_empty((*rows, *[1] * dims), dtype=torch.float32)


@implementation("rms_norm_backward")
def _(grad, input, weight, rstd):
    return torch.empty_like(input), torch.empty_like(weight)


@implementation("rms_norm_backward.plain")
def _(grad, input, rstd):
    return torch.empty_like(input)


@implementation("gated_delta")
def _(query, key, value, decay, beta):
    rlength = query.new_empty((2, *query.shape[:-1]), dtype=torch.float32)
    sums = decay.new_empty(decay.shape, dtype=torch.float32)
    return value.new_empty(value.shape), rlength, sums, value.new_empty((*value.shape[:-1], CHUNK))


@implementation("gated_delta_backward")
def _(grad, query, key, value, decay, beta, rlength, sums, inner):
    return tuple(one.new_empty(one.shape) for one in (query, key, value, decay, beta))


class GatedDelta(torch.autograd.Function):
    @staticmethod
    def forward(context, *inputs):
        out, *kept = torch.ops.rec.gated_delta(*inputs)
        context.save_for_backward(*inputs, *kept)
        return out

    @staticmethod
    def backward(context, grad):
        return torch.ops.rec.gated_delta_backward(grad, *context.saved_tensors)


def gated_delta(query, key, value, g, beta, initial_state=None, output_final_state=False, **_):
    """In place of transformers' chunk_gated_delta_rule, in training: without a state before or behind."""
    if initial_state is not None or output_final_state:
        raise NotImplementedError(
            "the gated delta rule with a state; record without a cache, or with --attention native"
        )
    return GatedDelta.apply(query, key, value, g, beta), None


def replace_gated_delta(model_class):
    """In the Python module of a class that calls it."""
    module = sys.modules[model_class.__module__]
    if hasattr(module, "torch_chunk_gated_delta_rule"):
        module.torch_chunk_gated_delta_rule = gated_delta


class Attention(torch.autograd.Function):
    @staticmethod
    def forward(context, query, key, value, mask, dropout, causal):
        out, logsumexp = torch.ops.rec.sdpa(query, key, value, mask, dropout, causal)
        context.save_for_backward(query, key, value, out, logsumexp, *[] if mask is None else [mask])
        context.rest = dropout, causal
        return out

    @staticmethod
    def backward(context, grad):
        query, key, value, out, logsumexp, *masks = context.saved_tensors
        mask = masks[0] if masks else None
        if context.needs_input_grad[3]:
            grads = torch.ops.rec.sdpa_backward.mask(grad, query, key, value, out, logsumexp, mask, *context.rest)
            return *grads, None, None
        grads = torch.ops.rec.sdpa_backward(grad, query, key, value, out, logsumexp, mask, *context.rest)
        return *grads, None, None, None


class RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(context, input, weight, dims):
        out, rstd = torch.ops.rec.rms_norm(input, weight, dims)
        context.save_for_backward(*[input, rstd] if weight is None else [input, weight, rstd])
        return out

    @staticmethod
    def backward(context, grad):
        saved = context.saved_tensors  # each access unpacks them
        if len(saved) == 2:
            return torch.ops.rec.rms_norm_backward.plain(grad, *saved), None, None
        return *torch.ops.rec.rms_norm_backward(grad, *saved), None


def attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    return Attention.apply(query, key, value, attn_mask, float(dropout_p), bool(is_causal))


def rms_norm(input, normalized_shape, weight=None, eps=None):
    return RmsNorm.apply(input, weight, len(normalized_shape))


class DeviceKernels(TorchFunctionMode):
    """Calls of attention, rms_norm and dropout become the device's kernels."""

    def __init__(self, attention_node, norm_node):
        super().__init__()
        self.attention_node = attention_node
        self.norm_node = norm_node

    def __torch_function__(self, function, types, arguments=(), named=None):
        named = named or {}
        if self.attention_node and function is functional.scaled_dot_product_attention:
            return attention(*arguments, **named)
        if self.norm_node and function in (functional.rms_norm, torch.rms_norm) and fused(*arguments, **named):
            return rms_norm(*arguments, **named)
        if function is torch._C._nn.pad_sequence:
            stacked = equal_sequences(*arguments, **named)
            if stacked is not None:
                return stacked
        if function in (functional.dropout, torch.dropout):
            dropped = device_dropout(*arguments, **named)
            if dropped is not None:
                return dropped
        return function(*arguments, **named)


def fused(input, normalized_shape, weight=None, eps=None):
    """The device too computes a norm in steps if its weight has another dtype than its input."""
    return weight is None or weight.dtype == input.dtype


def equal_sequences(sequences, batch_first=False, padding_value=0.0, padding_side="right"):
    """Sequences of one length need no padding: one operator in place of writes into the rows of a new tensor."""
    if len({tuple(one.shape) for one in sequences}) != 1:
        return None
    return torch.stack(tuple(sequences), 0 if batch_first else 1)


def device_dropout(input, p=0.5, training=True, inplace=False, train=None):
    training = training if train is None else train
    if training and not inplace and 0 < p < 1:
        return torch.native_dropout(input, p, True)[0]
    return None
