"""What `shardloom generate` continues is what transformers' generate() continues, token for token.

    python3 tests/interop/generation_agrees.py build/release/examples/shardloom [--speed]

Makes folders of random models with transformers (Qwen2, Llama, Qwen3, GPT-2), whose vocabulary are the 256 bytes, and
compares greedy texts, texts with a repetition penalty, and beams. --speed: one Qwen2 of 160 M parameters, tokens a second
of both at batch 1, with as many threads.
"""
import argparse
import subprocess
import tempfile
import time

import torch
from transformers import (AutoModelForCausalLM, GPT2Config, LlamaConfig, Qwen2Config, Qwen3Config)

PROMPT = "The beginning of it all"


def configs():
    common = dict(vocab_size=256, max_position_embeddings=256, bos_token_id=None, eos_token_id=None, initializer_range=0.3)
    rotary = dict(hidden_size=64, intermediate_size=160, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2)
    yield "qwen2", Qwen2Config(**common, **rotary)
    yield "llama", LlamaConfig(**common, **rotary)
    yield "qwen3", Qwen3Config(**common, **rotary, head_dim=32)
    yield "gpt2", GPT2Config(vocab_size=256, n_positions=256, n_embd=64, n_layer=3, n_head=4, bos_token_id=None, eos_token_id=None,
                             resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, initializer_range=0.3)


def saved(config, folder):
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config).eval().float()
    model.generation_config.pad_token_id = 0
    model.save_pretrained(folder)
    return model


def ours(program, folder, flags):
    run = subprocess.run([program, "generate", folder, "--prompt", PROMPT, *flags], capture_output=True, check=True)
    return list(run.stdout[:-1])


def theirs(model, **options):
    ids = torch.tensor([list(PROMPT.encode())])
    with torch.no_grad():
        return model.generate(ids, attention_mask=torch.ones_like(ids), **options)[0].tolist()


def compare(program):
    equal = True
    for name, config in configs():
        with tempfile.TemporaryDirectory() as folder:
            model = saved(config, folder)
            for flags, options in (([], {}), (["--repetition-penalty", "1.3"], {"repetition_penalty": 1.3}),
                                   (["--num-beams", "4", "--length-penalty", "0.7"], {"num_beams": 4, "length_penalty": 0.7})):
                mine = ours(program, folder, ["--max-new-tokens", "48", *flags])
                other = theirs(model, max_new_tokens=48, do_sample=False, **options)
                equal = equal and mine == other
                print(f"{name} {' '.join(flags) or 'greedy'}: {'equal' if mine == other else 'DIFFERENT'}, {len(other)} tokens")
    return equal


def speed(program):
    config = Qwen2Config(vocab_size=256, hidden_size=1024, intermediate_size=2816, num_hidden_layers=14, num_attention_heads=16,
                         num_key_value_heads=4, max_position_embeddings=1024, bos_token_id=None, eos_token_id=None)
    with tempfile.TemporaryDirectory() as folder:
        model = saved(config, folder)
        print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.0f} M parameters, {torch.get_num_threads()} threads")

        def seconds(generate):
            generate(4)
            begin = time.perf_counter()
            generate(16)
            middle = time.perf_counter()
            generate(80)
            return (time.perf_counter() - middle) - (middle - begin)  # of 64 tokens, without start and prompt

        flags = ["--compute-threads", str(torch.get_num_threads())]
        mine = 64 / seconds(lambda n: ours(program, folder, ["--max-new-tokens", str(n), *flags]))
        other = 64 / seconds(lambda n: theirs(model, max_new_tokens=n, do_sample=False))
        print(f"tokens/s at batch 1: shardloom {mine:.1f}, transformers {other:.1f}, ratio {mine / other:.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--speed", action="store_true")
    arguments = parser.parse_args()
    agrees = compare(arguments.program)
    if arguments.speed:
        speed(arguments.program)
    raise SystemExit(0 if agrees else 1)
