"""How far PyTorch's bf16 curves are from each other when only the order of a matrix product's fp32 sums changes.

usage: bf16_spread.py OUT_DIR CASE... [--against FOLDER [--write]]
Runs cases of tests/reference/generate/goldens.py on this processor and in emulated orders: `pairs` is AVX-512's
vdpbf16ps, `chain` one fused multiply-add after another, `amx` Intel's tdpbf16ps. Prints the worst differences of each
two curves, and of each from FOLDER/CASE/curve.json. --write: puts the largest difference of any two of these curves, step
by step, into FOLDER/CASE/curve.json, as "spread".
"""
import argparse, itertools, json, os, sys
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
AMX_STEPS = 32

def product(a, b, order, start=None):
    """a [batch, M, K] times b [batch, K, N] in fp32: products of two bf16 are exact there, so their sums are FMAs."""
    a, b = a.float(), b.float()
    steps = a.shape[-1]
    total = torch.zeros(a.shape[0], a.shape[1], b.shape[2])
    def add(to, k):
        if k < steps:
            to.add_(a[:, :, k:k + 1] * b[:, k:k + 1, :])
    if order == "chain":
        for k in range(steps):
            add(total, k)
    elif order == "pairs":
        for k in range(0, steps, 2):
            add(total, k + 1)
            add(total, k)
    else:
        for first in range(0, steps, AMX_STEPS):
            even, odd = torch.zeros_like(total), torch.zeros_like(total)
            for k in range(first, min(steps, first + AMX_STEPS), 2):
                add(even, k)
                add(odd, k + 1)
            total.add_(even + odd)
    return total if start is None else total + start.float()

class Ordered(TorchDispatchMode):
    def __init__(self, order):
        super().__init__()
        self.order = order

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        packet = func.overloadpacket
        if packet not in (aten.mm, aten.bmm, aten.addmm) or args[-1].dtype != torch.bfloat16:
            return func(*args, **(kwargs or {}))
        if packet is aten.bmm:
            return product(args[0], args[1], self.order).bfloat16()
        start = args[0] if packet is aten.addmm else None
        return product(args[-2][None], args[-1][None], self.order, start)[0].bfloat16()

ORDERS = ("native", "pairs", "chain", "amx")

def worker(rank, out, name, port):
    sys.argv = ["goldens.py", out]
    sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "reference", "generate"))
    import goldens
    scenario = goldens.S[name]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=scenario["world"])
    for order in ORDERS:
        if order == "native":
            goldens.run(rank, scenario["world"], f"{name}.{order}", scenario)
        else:
            with Ordered(order):
                goldens.run(rank, scenario["world"], f"{name}.{order}", scenario)
    dist.destroy_process_group()

def curve(folder):
    with open(f"{folder}/curve.json") as f:
        return json.load(f)["curve"]

def show(name, a, b):
    loss = max(abs(x["loss"] - y["loss"]) for x, y in zip(a, b))
    norm = max(abs(x["grad_norm"] / y["grad_norm"] - 1) for x, y in zip(a, b))
    print(f"{name}: loss {loss:.1e}, gradient norm {100 * norm:.2f} %", flush=True)

def write_spread(path, curves):
    """Of each step the largest difference of two curves; the gradient norm relative to the smaller one."""
    with open(path) as f:
        case = json.load(f)
    columns = list(zip(*curves.values(), case["curve"]))
    def of(key, difference):
        return [float(f"{difference(min(s[key] for s in step), max(s[key] for s in step)):.2g}") for step in columns]
    case["spread"] = {"what": "largest difference of two curves of PyTorch (tests/interop/bf16_spread.py)",
                      "torch": torch.__version__,
                      "loss": of("loss", lambda low, high: high - low),
                      "grad_norm_relative": of("grad_norm", lambda low, high: high / low - 1)}
    with open(path, "w") as f:
        json.dump(case, f, indent=1)

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("cases", nargs="+")
    parser.add_argument("--against")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    sys.argv = ["goldens.py", arguments.out]
    sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "reference", "generate"))
    import goldens
    for i, name in enumerate(arguments.cases):
        mp.spawn(worker, args=(arguments.out, name, 29600 + i), nprocs=goldens.S[name]["world"])
        curves = {order: curve(f"{arguments.out}/{name}.{order}") for order in ORDERS}
        for a, b in itertools.combinations(ORDERS, 2):
            show(f"{name}: {a} and {b}", curves[a], curves[b])
        if arguments.against:
            for order in ORDERS:
                show(f"{name}: {order} and {arguments.against}", curves[order], curve(f"{arguments.against}/{name}"))
            if arguments.write:
                write_spread(f"{arguments.against}/{name}/curve.json", curves)

if __name__ == "__main__":
    main()
