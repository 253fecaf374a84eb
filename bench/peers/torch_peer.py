"""PyTorch's side of a job: a Qwen2 of transformers with its scaled-dot-product attention, fused AdamW, norms clipped to 1.

Modes    fsdp: FSDP2 over gloo, --ranks processes of --threads threads, each block, the embedding and the head sharded;
         eager, compile: one process without sharding, as it is or by torch.compile.
Dtypes   bf16: MixedPrecisionPolicy(param_dtype=bf16, reduce_dtype=fp32); in one process autocast.
Writes   "NAME of N parameters" and, from rank 0, a line of JSON a step to --metrics: step, loss, tokens_per_second of the
         whole job by the wall clock.
"""
import argparse
import json
import os
import socket
import time

import torch
import torch.distributed as dist
import yaml


def arguments():
    parser = argparse.ArgumentParser()
    for name in ("model", "data", "metrics"):
        parser.add_argument("--" + name, required=True)
    parser.add_argument("--dtype", choices=("fp32", "bf16"), required=True)
    parser.add_argument("--mode", choices=("fsdp", "eager", "compile"), required=True)
    for name in ("ranks", "threads", "sequence", "batch", "steps"):
        parser.add_argument("--" + name, type=int, required=True)
    return parser.parse_args()


def make_model(path):
    from transformers import Qwen2Config, Qwen2ForCausalLM

    with open(path) as file:
        config = yaml.safe_load(file)
    config.pop("model_type")
    torch.manual_seed(0)
    model = Qwen2ForCausalLM._from_config(Qwen2Config(**config), attn_implementation="sdpa")
    model.config.use_cache = False
    return model


def shard(model, args):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    options = {"mesh": init_device_mesh("cpu", (args.ranks,))}
    if args.dtype == "bf16":
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for module in (model.model.embed_tokens, *model.model.layers, model.lm_head, model):
        fully_shard(module, **options)


def batches(args, rank, ranks):
    """Windows of the data's bytes, one after another; a rank's own of each step."""
    with open(args.data, "rb") as file:
        text = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8).long()
    window = args.sequence + 1
    windows = text[: len(text) // window * window].view(-1, window)
    for step in range(args.steps):
        first = (step * ranks + rank) * args.batch
        yield windows[(first + torch.arange(args.batch)) % len(windows)]


def train(rank, args, port):
    sharded = args.mode == "fsdp"
    torch.set_num_threads(args.threads)
    model = make_model(args.model)
    if rank == 0:
        print(f"Qwen2ForCausalLM of {sum(p.numel() for p in model.parameters())} parameters", flush=True)
    if sharded:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
        dist.init_process_group("gloo", rank=rank, world_size=args.ranks)
        shard(model, args)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    network = torch.compile(model) if args.mode == "compile" else model
    autocast = not sharded and args.dtype == "bf16"
    ranks = args.ranks if sharded else 1
    with open(args.metrics if rank == 0 else os.devnull, "w") as metrics:
        for step, batch in enumerate(batches(args, rank, ranks), 1):
            start = time.perf_counter()
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                logits = network(input_ids=batch[:, :-1]).logits
            loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            mean = loss.detach()
            if sharded:
                dist.all_reduce(mean, dist.ReduceOp.SUM)
                mean /= ranks
            seconds = time.perf_counter() - start
            tokens = ranks * args.batch * args.sequence
            metrics.write(json.dumps({"step": step, "loss": mean.item(), "tokens_per_second": tokens / seconds}) + "\n")
    if sharded:
        dist.destroy_process_group()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


if __name__ == "__main__":
    arguments_ = arguments()
    if arguments_.mode == "fsdp":
        torch.multiprocessing.spawn(train, (arguments_, free_port()), nprocs=arguments_.ranks)
    else:
        train(0, arguments_, 0)
