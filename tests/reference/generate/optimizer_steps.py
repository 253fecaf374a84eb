"""Steps of PyTorch's fused optimizers on bf16 parameters: their state is bf16, and each step is computed in fp32.

usage: optimizer_steps.py OUT_DIR
Writes OUT_DIR/<case>.safetensors: `weight` before the first step, `grad` of each step, and `weight`, `exp_avg`,
`exp_avg_sq` or `momentum_buffer` after each; the optimizer's arguments are the file's metadata.
"""
import os, sys
import torch
from safetensors.torch import save_file

STEPS, ELEMS = 5, 1024  # whole vectors of the processor: PyTorch computes what is left of one in double

CASES = {
    "adamw": (torch.optim.AdamW, dict(lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)),
    "adamw_small_beta1": (torch.optim.AdamW, dict(lr=1e-3, betas=(0.2, 0.999), eps=1e-6, weight_decay=0.0)),
    "sgd_momentum": (torch.optim.SGD, dict(lr=1e-2, momentum=0.9, dampening=0.1, weight_decay=0.1)),
    "sgd_nesterov": (torch.optim.SGD, dict(lr=1e-2, momentum=0.9, nesterov=True, weight_decay=0.0)),
}

def run(kind, arguments):
    generator = torch.Generator().manual_seed(7)
    def normals(rows):
        sizes = 10 ** torch.randn(rows, ELEMS, generator=generator)
        return (torch.randn(rows, ELEMS, generator=generator) * sizes).bfloat16()
    weight = torch.nn.Parameter(normals(1)[0])
    grads = normals(STEPS)
    optimizer = kind([weight], fused=True, **arguments)
    found = {"start": weight.detach().clone(), "grad": grads, "weight": []}
    for grad in grads:
        weight.grad = grad.clone()
        optimizer.step()
        found["weight"].append(weight.detach().clone())
        for name, value in optimizer.state[weight].items():
            if value.numel() == ELEMS:
                assert value.dtype == torch.bfloat16
                found.setdefault(name, []).append(value.clone())
    return {name: torch.stack(value) if isinstance(value, list) else value for name, value in found.items()}

for name, (kind, arguments) in CASES.items():
    words = {key: str(value) for key, value in arguments.items()}
    os.makedirs(sys.argv[1], exist_ok=True)
    save_file(run(kind, arguments), f"{sys.argv[1]}/{name}.safetensors",
              metadata={"optimizer": kind.__name__, "torch": torch.__version__, **words})
    print(name, torch.__version__, torch.backends.cpu.get_cpu_capability())
