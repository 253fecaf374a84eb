"""Modules that record_model_test.py records: two of the references, and small ones for texts and casts."""

import torch
from torch import nn
from torch.nn import functional

# ---- the decoder that was measured on an H200 (tests/reference/generate/gpu_ref.py)


class Attn(nn.Module):
    def __init__(self, width, heads, groups):
        super().__init__()
        self.heads, self.groups, self.head_width = heads, groups, width // heads
        self.q_proj = nn.Linear(width, heads * self.head_width, bias=False)
        self.k_proj = nn.Linear(width, groups * self.head_width, bias=False)
        self.v_proj = nn.Linear(width, groups * self.head_width, bias=False)
        self.o_proj = nn.Linear(heads * self.head_width, width, bias=False)

    def forward(self, x, cos, sin):
        batch, rows, _ = x.shape
        q = self.q_proj(x).view(batch, rows, self.heads, self.head_width).transpose(1, 2)
        k = self.k_proj(x).view(batch, rows, self.groups, self.head_width).transpose(1, 2)
        v = self.v_proj(x).view(batch, rows, self.groups, self.head_width).transpose(1, 2)

        def rotated(t):
            a, b = t.chunk(2, -1)
            return t * cos + torch.cat((-b, a), -1) * sin

        q, k = rotated(q), rotated(k)
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(out.transpose(1, 2).reshape(batch, rows, -1))


class MLP(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x):
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self, width, heads, groups, inner):
        super().__init__()
        self.input_layernorm = nn.RMSNorm(width, eps=1e-5)
        self.self_attn = Attn(width, heads, groups)
        self.post_attention_layernorm = nn.RMSNorm(width, eps=1e-5)
        self.mlp = MLP(width, inner)

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    def __init__(self, width, layers, heads, groups, inner, vocabulary):
        super().__init__()
        self.embed_tokens = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList([Block(width, heads, groups, inner) for _ in range(layers)])
        self.norm = nn.RMSNorm(width, eps=1e-5)
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        self.head_width = width // heads

    def logits(self, ids):
        rows = ids.shape[1]
        x = self.embed_tokens(ids)
        inverse = 1.0 / (
            500000.0 ** (torch.arange(0, self.head_width, 2, device=ids.device).float() / self.head_width)
        )
        angles = torch.outer(torch.arange(rows, device=ids.device).float(), inverse)
        both = torch.cat((angles, angles), -1)
        cos, sin = both.cos().to(x.dtype), both.sin().to(x.dtype)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.lm_head(self.norm(x))

    def forward(self, ids, tgt):
        self.kept = self.logits(ids)  # the caller still has them when memory is measured after forward
        return functional.cross_entropy(self.kept.float().view(-1, self.kept.size(-1)), tgt)


def llama_1b():
    def inputs(batch, sequence):
        tokens = torch.zeros((batch, sequence + 1), dtype=torch.int64)
        return {"ids": tokens[:, :-1], "tgt": tokens[:, 1:].reshape(-1)}

    inputs_are(inputs)
    model = Decoder(width=2048, layers=16, heads=32, groups=8, inner=8192, vocabulary=128256)
    model.__class__ = type("W", (Decoder,), {})
    return model


# ---- DiT-XL/2: blocks with shared conditioning


class DiTBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.fc1 = nn.Linear(width, 4 * width)
        self.fc2 = nn.Linear(4 * width, width)
        self.ada = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, x, condition):
        shift1, scale1, gate1, shift2, scale2, gate2 = self.ada(condition).chunk(6, dim=1)
        batch, rows, width = x.shape
        h = self.norm1(x) * (1 + scale1.unsqueeze(1)) + shift1.unsqueeze(1)
        q, k, v = self.qkv(h).view(batch, rows, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        x = x + gate1.unsqueeze(1) * self.proj(
            functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, rows, width)
        )
        h = self.norm2(x) * (1 + scale2.unsqueeze(1)) + shift2.unsqueeze(1)
        return x + gate2.unsqueeze(1) * self.fc2(functional.gelu(self.fc1(h), approximate="tanh"))


class DiT(nn.Module):
    def __init__(self, width=1152, layers=28, heads=16, patch=2, channels=4, size=32):
        super().__init__()
        self.patch = nn.Conv2d(channels, width, patch, stride=patch)
        self.pos = nn.Parameter(torch.zeros(1, (size // patch) ** 2, width))
        self.label = nn.Embedding(1001, width)
        self.time = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
        self.blocks = nn.ModuleList([DiTBlock(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.ada = nn.Sequential(nn.SiLU(), nn.Linear(width, 2 * width))
        self.out = nn.Linear(width, patch * patch * channels * 2)

    def forward(self, x, t, y, target):
        x = self.patch(x).flatten(2).transpose(1, 2) + self.pos
        frequencies = torch.exp(-9.21 * torch.arange(128, dtype=torch.float32, device=x.device) / 128)
        time = t[:, None].float() * frequencies
        time = torch.cat([time.cos(), time.sin()], -1).to(x.dtype)
        condition = self.time(time) + self.label(y)
        for block in self.blocks:
            x = block(x, condition)
        shift, scale = self.ada(condition).chunk(2, dim=1)
        out = self.out(self.norm(x) * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1))
        return functional.mse_loss(out.float(), target)


def dit():
    inputs_are(
        lambda batch, sequence: {
            "x": torch.zeros(batch, 4, 32, 32, dtype=torch.bfloat16),
            "t": torch.zeros(batch, dtype=torch.int64),
            "y": torch.zeros(batch, dtype=torch.int64),
            "target": torch.zeros(batch, 256, 32),
        }
    )
    return DiT()


# ---- small ones


class Small(nn.Module):
    """A table and a linear layer around `middle`."""

    def __init__(self, middle):
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.out = nn.Linear(8, 8)
        self.middle = middle

    def forward(self, ids):
        return self.out(self.middle(self.embed(ids)))


def small(middle):
    inputs_are(lambda batch, sequence: {"ids": torch.zeros((batch, sequence), dtype=torch.int64)})
    return Small(middle)


def chooses():
    return small(lambda x: x[x.sum(-1) > 0])


def reads_a_value():
    return small(lambda x: x * x.sum().item())


def branches():
    return small(lambda x: x.relu() if x.shape[1] < 160 else x)


def odd_groups():
    class Groups(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(2, 8, 12))
            self.back = nn.Parameter(torch.zeros(2, 12, 8))

        def forward(self, x):
            rows = x.flatten(0, 1)
            ends = torch.tensor([4, rows.shape[0]], dtype=torch.int32)
            inner = torch._grouped_mm(rows, self.weight, offs=ends)
            return torch._grouped_mm(inner, self.back, offs=ends).view_as(x)

    return small(Groups())


def depthwise():
    class Depthwise(nn.Module):
        def __init__(self):
            super().__init__()
            self.convolution = nn.Conv1d(8, 8, 3, padding=1, groups=8, bias=False)

        def forward(self, x):
            return self.convolution(x.transpose(1, 2)).transpose(1, 2)

    return small(Depthwise())


def chosen_rows():
    class Chosen(nn.Module):
        def forward(self, x):
            mask = torch.arange(x.shape[1]) < 3
            mask = mask.expand(x.shape[:2])
            return x[mask, :] * 2

    return small(Chosen())


class Turn(nn.Module):
    def forward(self, x, table):
        return (x * table).to(x.dtype)


class Turned(nn.Module):
    """Blocks that all get one fp32 table."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.blocks = nn.ModuleList([Turn(), Turn()])

    def forward(self, ids):
        x, table = self.embed(ids), torch.ones(8)
        for block in self.blocks:
            x = block(x, table)
        return x


def fp32_table():
    small(None)
    return Turned()


made_inputs = None


def inputs_are(function):
    global made_inputs
    made_inputs = function


def inputs(batch, sequence):
    return made_inputs(batch, sequence)
