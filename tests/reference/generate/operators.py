"""Operators of PyTorch and Hugging Face's models in bf16 on a CPU: inputs, results and gradients.

usage: operators.py OUT_DIR
Writes OUT_DIR/<case>/{case.json, tensors.safetensors}. Heads are stored as [batch, sequence, heads, head dim].
"""
import json, os, sys
import torch, torch.nn.functional as F
from safetensors.torch import save_file
from transformers import Qwen3Config
from transformers.activations import ACT2FN
from transformers.models.gpt2.modeling_gpt2 import eager_attention_forward as gpt2_attention
from transformers.models.qwen3.modeling_qwen3 import (Qwen3RMSNorm, Qwen3RotaryEmbedding, apply_rotary_pos_emb,
                                                      eager_attention_forward)

OUT = sys.argv[1]
BF16 = torch.bfloat16
generator = torch.Generator().manual_seed(2026)

def normal(*shape, scale=1.0, shift=0.0):
    return (scale * torch.randn(shape, generator=generator) + shift).to(BF16)

def case(name, operator, inputs, run, constants=None, **numbers):
    """`run` takes leaves with the values of `inputs`; its result meets a random gradient (a scalar: 1)."""
    leaves = {k: v.clone().requires_grad_() for k, v in inputs.items()}
    result = run(**leaves, **(constants or {}))
    gradient = normal(*result.shape, scale=0.1) if result.dim() > 0 else torch.ones((), dtype=result.dtype)
    result.backward(gradient)
    tensors = {f"in.{k}": v for k, v in inputs.items()} | {f"const.{k}": v for k, v in (constants or {}).items()}
    tensors |= {"out": result.detach(), "grad_out": gradient} | {f"grad.{k}": v.grad for k, v in leaves.items()}
    write(name, {"operator": operator, **numbers}, tensors)

def write(name, words, tensors):
    folder = f"{OUT}/{name}"
    os.makedirs(folder, exist_ok=True)
    save_file({k: v.contiguous() for k, v in tensors.items()}, f"{folder}/tensors.safetensors", metadata={"format": "pt"})
    with open(f"{folder}/case.json", "w") as f:
        json.dump({**words, "torch": torch.__version__}, f, indent=1)

def rms_norm(dim):
    def run(x, weight):
        norm = Qwen3RMSNorm(dim, eps=1e-6)
        del norm.weight
        norm.weight = weight
        return norm(x)
    return run

def conv1d(x, weight, bias):
    return torch.addmm(bias, x.view(-1, x.size(-1)), weight).view(x.size()[:-1] + (weight.size(1),))

def ids_of(count, *shape):
    return torch.randint(0, count, shape, generator=generator, dtype=torch.int32)

def rotary(dim, length, theta, like):
    config = Qwen3Config(hidden_size=4 * dim, num_attention_heads=4, head_dim=dim, max_position_embeddings=length,
                         rope_parameters={"rope_type": "default", "rope_theta": theta})
    return Qwen3RotaryEmbedding(config)(like, torch.arange(length)[None])

class Groups(torch.nn.Module):
    num_key_value_groups = 2

def causal(length):
    mask = torch.full((length, length), torch.finfo(BF16).min, dtype=BF16).triu(1)
    return mask[None, None]

def heads_first(t):
    return t.transpose(1, 2)

def eager(q, k, v):
    module = Groups().train()
    return eager_attention_forward(module, *map(heads_first, (q, k, v)), causal(q.size(1)), q.size(-1) ** -0.5)[0]

def gpt2_eager(q, k, v):
    return gpt2_attention(Groups().train(), *map(heads_first, (q, k, v)), causal(q.size(1)))[0]

def sdpa(q, k, v):
    return heads_first(F.scaled_dot_product_attention(*map(heads_first, (q, k, v)), is_causal=True, enable_gqa=True))

def rope(x, cos, sin):
    return heads_first(apply_rotary_pos_emb(heads_first(x), heads_first(x).detach(), cos[None], sin[None])[0])

def fan_out(x, a, b, c):
    return F.linear(x, a) + F.linear(x, b) + F.linear(x, c)

def residual(x, weight, projection):
    return x + F.linear(rms_norm(x.size(-1))(x, weight), projection)

def main():
    torch.set_num_threads(2)
    x = normal(2, 48, 64)
    case("linear", "linear", {"x": x, "weight": normal(172, 64, scale=0.05)}, F.linear)
    case("linear_bias", "linear", {"x": x, "weight": normal(96, 64, scale=0.05), "bias": normal(96, scale=0.05)}, F.linear)
    case("conv1d", "linear_kn", {"x": x, "weight": normal(64, 192, scale=0.05), "bias": normal(192, scale=0.05)}, conv1d)
    ids = ids_of(12, 2, 48)
    case("embedding", "embedding", {"table": normal(32, 64)}, lambda table, ids: F.embedding(ids, table), {"ids": ids})
    weight = normal(64, scale=0.05, shift=1)
    case("rms_norm", "rms_norm", {"x": normal(2, 48, 64, scale=2), "weight": weight}, rms_norm(64), eps=1e-6)
    case("rms_norm_heads", "rms_norm", {"x": normal(2, 48, 4, 24), "weight": normal(24, shift=1)}, rms_norm(24), eps=1e-6)
    case("layer_norm", "layer_norm", {"x": normal(2, 48, 64, shift=0.3), "weight": weight, "bias": normal(64, scale=0.05)},
         lambda x, weight, bias: F.layer_norm(x, (64,), weight, bias, 1e-5), eps=1e-5)
    for name, dim, theta in (("rotary_tables", 24, 1000000.0), ("rotary_tables_llama", 16, 10000.0)):
        cos, sin = rotary(dim, 512, theta, x)
        write(name, {"operator": "rotary_tables", "theta": theta}, {"out.cos": cos[0], "out.sin": sin[0]})
    cos, sin = rotary(24, 48, 1000000.0, x)
    case("rope", "rope", {"x": normal(2, 48, 4, 24)}, rope, {"cos": cos[0], "sin": sin[0]})
    case("softmax", "softmax", {"x": normal(8, 48, 64, scale=2)}, lambda x: F.softmax(x, -1, dtype=torch.float32).to(x.dtype))
    qkv = {"q": normal(2, 48, 4, 24), "k": normal(2, 48, 2, 24), "v": normal(2, 48, 2, 24)}
    case("attention", "attention", qkv, eager, scale=24 ** -0.5)
    case("attention_sdpa", "flash_attention", qkv, sdpa, scale=24 ** -0.5)
    qkv = {k: normal(2, 48, 4, 16) for k in "qkv"}
    case("attention_gpt2", "plain_attention", qkv, gpt2_eager, scale=16 ** -0.5)
    case("silu", "silu", {"x": normal(2, 48, 172, scale=2)}, lambda x: ACT2FN["silu"](x))
    case("swiglu", "swiglu", {"gate": normal(2, 48, 172, scale=2), "up": normal(2, 48, 172)}, lambda gate, up: F.silu(gate) * up)
    case("gelu_new", "gelu_tanh", {"x": normal(2, 48, 172, scale=2)}, lambda x: ACT2FN["gelu_new"](x))
    case("gelu", "gelu_erf", {"x": normal(2, 48, 172, scale=2)}, lambda x: ACT2FN["gelu"](x))
    case("fan_out", "fan_out", {"x": x} | {k: normal(40, 64, scale=0.2) for k in "abc"}, fan_out)
    case("residual", "residual", {"x": x, "weight": weight, "projection": normal(64, 64, scale=0.05)}, residual, eps=1e-6)
    targets = ids_of(256, 96)
    targets[7] = -100
    case("cross_entropy", "cross_entropy", {"logits": normal(96, 256, scale=2)},
         lambda logits, targets: F.cross_entropy(logits.float(), targets.long()), {"targets": targets})

if __name__ == "__main__":
    main()
