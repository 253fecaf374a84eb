"""A profile of one step of PyTorch FSDP2 on a real GPU, as torch.profiler writes it.

Runs on one GPU: rank 0 of a world of N through the fake process group, whose collectives have no kernels. The third step is
profiled; OUT gets MODEL.trace.json.gz and, in traces.json, the job and the time of steps that are not profiled.

usage: gpu_trace.py OUT [MODEL ...]
"""

import json
import pathlib
import sys
import time

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile
from torch.testing._internal.distributed.fake_pg import FakeStore

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from gpu_out_of_memory import CONFIGS, Place, make_model, run_step

STEPS = 6


def one(name, out, world=8, sequence=2048, micro_batch=2):
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
    try:
        model, _ = make_model(CONFIGS[name], world, True)
        place = Place({})
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
        ids = torch.randint(0, CONFIGS[name]["vocab_size"], (micro_batch, sequence), device="cuda")
        times = []
        for number in range(STEPS):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            if number == 2:
                with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
                    run_step(model, ids, optimizer, place)
                    torch.cuda.synchronize()
                profiler.export_chrome_trace(str(out / f"{name}.trace.json.gz"))
            else:
                run_step(model, ids, optimizer, place)
                torch.cuda.synchronize()
                times.append((time.perf_counter() - begin) * 1e3)
        return {"model": name, "world": world, "sequence": sequence, "micro_batch": micro_batch, "reshard": True,
                "step_ms": times[2:], "torch": torch.__version__, "device": torch.cuda.get_device_name()}
    finally:
        dist.destroy_process_group()


def main():
    out = pathlib.Path(sys.argv[1])
    rows = [one(name, out) for name in sys.argv[2:] or CONFIGS]
    for row in rows:
        print(row, flush=True)
    (out / "traces.json").write_text(json.dumps({"configs": CONFIGS, "traces": rows}, indent=1))


if __name__ == "__main__":
    sys.exit(main())
