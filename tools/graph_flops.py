"""Floating point operations of one operator: 2 for each multiplication with its addition; 0 where no formula is known.

Attention is counted in full, causal or not, as PyTorch counts it.
"""

import math

import torch
from torch.utils.flop_counter import flop_registry


def grouped_product(first, second):
    """_grouped_mm: rows [M, K] of all groups by [G, K, N], or [M, K] by [K, N] with groups along K."""
    groups = first.shape[0] if first.dim() == 3 and second.dim() == 3 else 1
    return 2 * groups * first.shape[-2] * first.shape[-1] * second.shape[-1]


def attention(products_of_query_width, products_of_value_width, query, key, value):
    pairs = math.prod(query.shape[:-1]) * key.shape[-2]
    return 2 * pairs * (products_of_query_width * query.shape[-1] + products_of_value_width * value.shape[-1])


def attention_forward(query, key, value):
    return attention(1, 1, query, key, value)


def attention_backward(query, key, value):
    """Scores again and the gradients of query and key; gradients of weights and value."""
    return attention(3, 2, query, key, value)


def gated_delta(query, key, value, decay, beta, *rest):
    """Of a row and head: products of keys and queries in its chunk, its row of the triangular system, and the state,
    read for the value and for the output, and written."""
    chunk, heads = 64, math.prod(value.shape[:-1])
    within = chunk * (3 * query.shape[-1] + 2 * value.shape[-1])
    return 2 * heads * (within + 3 * query.shape[-1] * value.shape[-1])


def gated_delta_backward(*tensors):
    """Two gradients of each product, and the forward's again."""
    return 3 * gated_delta(*tensors)


def grouped_convolution_backward(grad, input, weight, *rest):
    """A gradient costs as much as the forward. PyTorch's formula takes every output channel with every input channel
    for the weight's, whatever the groups."""
    outputs, wanted = (input if rest[4] else grad), sum(rest[-1][:2])
    return 2 * outputs.shape[0] * math.prod(outputs.shape[2:]) * weight.numel() * wanted


# PyTorch's registry has no formula for these and would say 0. Each takes the tensors from the position behind it on.
OURS = {
    "aten._grouped_mm": (grouped_product, 0, 2),
    "aten._scaled_dot_product_flash_attention_for_cpu": (attention_forward, 0, 3),
    "aten._scaled_dot_product_flash_attention_for_cpu_backward": (attention_backward, 1, 4),
    "rec.gated_delta": (gated_delta, 0, 5),
    "rec.gated_delta_backward": (gated_delta_backward, 1, 6),
    "rec.sdpa": (attention_forward, 0, 3),
    "rec.sdpa_backward": (attention_backward, 1, 4),
}


def flops_of(function, arguments, named, result):
    ours = OURS.get(str(function.overloadpacket))
    if function is torch.ops.aten.convolution_backward.default and arguments[9] > 1:
        return grouped_convolution_backward(*arguments)
    if ours is not None:
        formula, begin, end = ours
        return formula(*arguments[begin:end])
    counter = flop_registry.get(function.overloadpacket)
    return int(counter(*arguments, **named, out_val=result)) if counter is not None else 0
