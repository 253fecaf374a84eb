"""What `shardloom generate` continues is what transformers' generate() continues, token for token.

    python3 tests/interop/generation_agrees.py build/release/shardloom [--speed]

Makes folders of random models with transformers (Qwen2, Llama, Qwen3, GPT-2), whose vocabulary are the 256 bytes, and
compares greedy texts, texts with a repetition penalty, and beams; and a chat of three turns with apply_chat_template()
and generate(), with a tokenizer of Qwen's kind. --speed: one Qwen2 of 160 M parameters, tokens a second
of both at batch 1, with as many threads.
"""
import argparse
import json
import pathlib
import shutil
import subprocess
import tempfile
import time

import torch
from transformers import (AutoModelForCausalLM, AutoTokenizer, GPT2Config, LlamaConfig, Qwen2Config, Qwen3Config)

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


TOKENIZER = pathlib.Path(__file__).parents[1] / "reference" / "tokenizers" / "tokenizer_qwen2" / "tokenizer.json"
TEMPLATE = pathlib.Path(__file__).parents[1] / "reference" / "chat" / "templates" / "own_chatml.jinja"
TURNS = ["Who are you?", "Et après, 你好?", "{{ messages }} <|im_end|> it"]


def chat_case(program):
    """Three turns: each prompt is rendered by transformers from the turns before, and the answers have to be ours."""
    with tempfile.TemporaryDirectory() as folder:
        config = Qwen2Config(vocab_size=2048, hidden_size=64, intermediate_size=160, num_hidden_layers=3, num_attention_heads=4,
                             num_key_value_heads=2, max_position_embeddings=1024, bos_token_id=None, eos_token_id=2, initializer_range=0.3)
        model = saved(config, folder)
        shutil.copy(TOKENIZER, folder)
        shutil.copy(TEMPLATE, pathlib.Path(folder) / "chat_template.jinja")
        with open(pathlib.Path(folder) / "tokenizer_config.json", "w") as file:
            json.dump({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}, file)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        messages = [{"role": "system", "content": "Be short."}]
        for turn in TURNS:
            messages.append({"role": "user", "content": turn})
            text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            ids = torch.tensor([tokenizer(text, add_special_tokens=False)["input_ids"]])
            with torch.no_grad():
                made = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=40, do_sample=False)[0, ids.shape[1]:]
            messages.append({"role": "assistant", "content": tokenizer.decode(made, skip_special_tokens=True, clean_up_tokenization_spaces=False)})
        lines = "".join(turn + "\n" for turn in TURNS) + "/save talk.json\n"
        subprocess.run([program, "chat", folder, "--system", "Be short.", "--max-new-tokens", "40"], input=lines, text=True,
                       capture_output=True, check=True, cwd=folder)
        with open(pathlib.Path(folder) / "talk.json") as file:
            equal = json.load(file)["messages"] == messages
    print(f"chat of {len(TURNS)} turns: {'equal' if equal else 'DIFFERENT'}")
    return equal


def speed(program):
    config = Qwen2Config(vocab_size=256, hidden_size=1024, intermediate_size=2816, num_hidden_layers=14, num_attention_heads=16,
                         num_key_value_heads=4, max_position_embeddings=1024, bos_token_id=None, eos_token_id=None)
    with tempfile.TemporaryDirectory() as folder:
        model = saved(config, folder)
        print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.0f} M parameters, {torch.get_num_threads()} threads")

        def seconds(generate, tokens):
            begin = time.perf_counter()
            generate(tokens)
            return time.perf_counter() - begin

        flags = ["--compute-threads", str(torch.get_num_threads())]
        runs = {"shardloom": lambda n: ours(program, folder, ["--max-new-tokens", str(n), *flags]),
                "transformers": lambda n: theirs(model, max_new_tokens=n, do_sample=False)}
        short, long = {}, {}  # the best of each, in turn: neighbours on the machine slow both
        for _ in range(4):
            for name, generate in runs.items():
                short[name] = min(short.get(name, 1e9), seconds(generate, 16))
                long[name] = min(long.get(name, 1e9), seconds(generate, 272))
        mine, other = (256 / (long[name] - short[name]) for name in runs)  # without start and prompt
        print(f"tokens/s at batch 1: shardloom {mine:.1f}, transformers {other:.1f}, ratio {mine / other:.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--speed", action="store_true")
    arguments = parser.parse_args()
    arguments.program = str(pathlib.Path(arguments.program).absolute())
    agrees = compare(arguments.program)
    agrees = chat_case(arguments.program) and agrees
    if arguments.speed:
        speed(arguments.program)
    raise SystemExit(0 if agrees else 1)
