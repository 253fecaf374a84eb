"""One rank of a run of FSDP2 on CPUs (gloo) with a fault; explain_faults_test.py starts it under torchrun.

usage: faulty_run.py CASE.json

CASE has the run (config, wrap, reshard_after_forward, seq_length, micro_batch_size, micro_batches, steps, timeout_s)
and the fault: kind, rank, step and micro_batch (from 0 on), module, phase. Prints nothing of its own.
"""

import datetime
import json
import os
import re
import resource
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from transformers import AutoConfig, AutoModelForCausalLM

SLACK_BYTES = 1 << 20  # below the memory that a module allocates, above that of Python between two modules


def wrapped_modules(model, patterns):
    """In the order of the patterns, numbers for {*}."""
    for pattern in patterns:
        words = re.escape(pattern).replace(re.escape("{*}"), "[0-9]+")
        yield from [(name, module) for name, module in model.named_modules() if re.fullmatch(words, name)]


def sharded(case):
    torch.manual_seed(case["seed"])
    config = AutoConfig.from_pretrained(case["config"])
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    for _, module in wrapped_modules(model, case["wrap"]):
        fully_shard(module, reshard_after_forward=case["reshard_after_forward"])
    return fully_shard(model)


class Passing(torch.nn.Module):
    """In the place of a module: hands its input on, or keeps backward out of it."""

    def __init__(self, original, form, keeps_forward):
        super().__init__()
        object.__setattr__(self, "original", original)
        object.__setattr__(self, "form", form)
        object.__setattr__(self, "keeps_forward", keeps_forward)

    def __getattr__(self, name):
        return getattr(object.__getattribute__(self, "original"), name)

    def forward(self, *args, **kwargs):
        hidden = args[0] if args else kwargs["hidden_states"]
        output = hidden
        if self.keeps_forward:
            with torch.no_grad():
                found = self.original(*args, **kwargs)
                found = found[0] if isinstance(found, tuple) else found
            output = hidden + (found - hidden).detach()
        return (output, None) if self.form is tuple else output


def cap_memory(*_):
    with open("/proc/self/status") as status:
        used = next(int(line.split()[1]) << 10 for line in status if line.startswith("VmSize:"))
    resource.setrlimit(resource.RLIMIT_AS, (used + SLACK_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))


EVENTS = {
    "hang": lambda *_: time.sleep(3600),
    "die": lambda *_: os.kill(os.getpid(), signal.SIGKILL),
    "memory": cap_memory,
}


class Fault:
    def __init__(self, case, model):
        self.kind, self.phase = case["fault"]["kind"], case["fault"]["phase"]
        self.at = (case["fault"]["step"], case["fault"]["micro_batch"])
        path = case["fault"]["module"]
        self.module = model.get_submodule(path)
        self.parent, self.name = model.get_submodule(path.rpartition(".")[0]), path.rpartition(".")[2]
        self.form = None
        self.module.register_forward_hook(self.learn)

    def learn(self, module, args, output):
        self.form = type(output)

    def inject(self):
        """Before the forward of its micro-batch; what it returns ends the fault behind that."""
        if self.kind == "skip":
            return self.replace()
        event = EVENTS[self.kind]
        if self.phase == "forward":
            return self.module.register_forward_pre_hook(lambda *_: event(), prepend=True).remove
        # Before FSDP2's own hook of the output, which begins the backward of the group.
        return self.module.register_forward_hook(lambda module, args, output: tell(output, event), prepend=True).remove

    def replace(self):
        self.parent._modules[self.name] = Passing(self.module, self.form, self.phase == "backward")

        def restore():
            self.parent._modules[self.name] = self.module

        return restore


def tell(output, event):
    (output[0] if isinstance(output, tuple) else output).register_hook(lambda gradient: event())


def train(case, model, fault):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    vocabulary = model.config.vocab_size
    shape = (case["micro_batch_size"], case["seq_length"])
    for step in range(case["steps"]):
        total = torch.zeros(())
        for micro_batch in range(case["micro_batches"]):
            ids = torch.randint(0, vocabulary, shape)
            restore = fault.inject() if fault and fault.at == (step, micro_batch) else None
            loss = model(input_ids=ids, labels=ids, use_cache=False).loss
            if restore:
                restore()
            loss.backward()
            total += loss.detach()
        dist.all_reduce(total)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def main():
    with open(sys.argv[1]) as file:
        case = json.load(file)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=case["timeout_s"]))
    model = sharded(case)
    fault = Fault(case, model) if dist.get_rank() == case["fault"]["rank"] else None
    train(case, model, fault)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
