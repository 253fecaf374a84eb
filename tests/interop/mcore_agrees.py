"""What `shardloom convert hf-to-mcore` writes for one rank, in a GPTModel of megatron-core on the CPU.

usage: mcore_agrees.py MCORE HF [--cut CUT] [--save OUT [--ranks N]]

MCORE    folder of the checkpoint (tensor, pipeline and expert size 1): torch.load(weights_only=True) opens its file, the
         model is built by the args in it, names and shapes are those of its state_dict, and it is loaded strictly.
HF       folder that it was made of: transformers' logits of the same tokens, within 1e-4.
--cut    another checkpoint of HF, of several tensor ranks: put together by torch.cat its tensors are those of MCORE.
--save   writes the model as Megatron does, args as argparse.Namespace: for `shardloom convert mcore-to-hf` to read. For
         N tensor ranks, in views of the whole tensors, a defaultdict by protocol 4, as MindSpeed-LLM's converter.
"""
import argparse
import os
import random
import warnings
from collections import defaultdict
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron.core import parallel_state, tensor_parallel
from megatron.core.enums import ModelType
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.transformer_config import TransformerConfig
from transformers import AutoModelForCausalLM

FILE = "iter_0000001/mp_rank_{:02}/model_optim_rng.pt"
ROWS = ("word_embeddings.weight", "output_layer.weight", "linear_qkv.weight", "linear_qkv.bias")
COLUMNS = ("linear_proj.weight", "linear_fc2.weight")


def opened(folder, rank):
    return torch.load(os.path.join(folder, FILE.format(rank)), weights_only=True)


def together(name, parts):
    if name.endswith("linear_fc1.weight"):
        halves = [part.chunk(2) for part in parts]
        return torch.cat([half[0] for half in halves] + [half[1] for half in halves])
    if name.endswith(ROWS):
        return torch.cat(parts)
    return torch.cat(parts, dim=1) if name.endswith(COLUMNS) else parts[0]


def part_of(name, tensor, rank, ranks):
    if tensor is None or ranks == 1:
        return tensor
    if name.endswith("linear_fc1.weight"):
        return torch.cat([half.chunk(ranks)[rank] for half in tensor.chunk(2)])
    if name.endswith(ROWS):
        return tensor.chunk(ranks)[rank]
    return tensor.chunk(ranks, dim=1)[rank] if name.endswith(COLUMNS) else tensor


def save(folder, ranks, args, model):
    for rank in range(ranks):
        path = os.path.join(folder, FILE.format(rank))
        os.makedirs(os.path.dirname(path))
        parts = {name: part_of(name, value, rank, ranks) for name, value in model.items()}
        if ranks > 1:
            parts = defaultdict(dict, parts)
        numbers = {"random_rng_state": random.getstate(), "np_rng_state": np.random.get_state(),
                   "torch_rng_state": torch.get_rng_state()}
        torch.save({"args": argparse.Namespace(**args, params_dtype=torch.bfloat16, model_type=ModelType.encoder_or_decoder),
                    "checkpoint_version": 3.0, "iteration": 1, "model": parts, "rng_state": [numbers]}, path,
                   pickle_protocol=2 if ranks == 1 else 4)
    with open(os.path.join(folder, "latest_checkpointed_iteration.txt"), "w") as tracker:
        tracker.write("1")


def build(args):
    experts = getattr(args, "num_experts", None)
    config = TransformerConfig(
        num_layers=args.num_layers, hidden_size=args.hidden_size, num_attention_heads=args.num_attention_heads,
        num_query_groups=args.num_query_groups, kv_channels=args.kv_channels, ffn_hidden_size=args.ffn_hidden_size,
        add_bias_linear=args.add_bias_linear, add_qkv_bias=args.add_qkv_bias, gated_linear_unit=args.swiglu,
        activation_func=F.silu, normalization=args.normalization, layernorm_epsilon=args.norm_epsilon,
        qk_layernorm=args.qk_layernorm, hidden_dropout=0.0, attention_dropout=0.0, use_cpu_initialization=True,
        perform_initialization=False, bias_dropout_fusion=False, masked_softmax_fusion=False,
        num_moe_experts=experts, moe_ffn_hidden_size=getattr(args, "moe_ffn_hidden_size", None),
        moe_router_topk=getattr(args, "moe_router_topk", None) or 2, moe_token_dispatcher_type="allgather",
        moe_router_load_balancing_type="none")
    spec = get_gpt_layer_local_spec(num_experts=experts, qk_layernorm=args.qk_layernorm, normalization=args.normalization)
    return GPTModel(config, spec, vocab_size=args.padded_vocab_size, max_sequence_length=args.max_position_embeddings,
                    position_embedding_type=args.position_embedding_type, rotary_base=args.rotary_base,
                    share_embeddings_and_output_weights=not args.untie_embeddings_and_output_weights).eval()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("mcore")
    parser.add_argument("hf")
    parser.add_argument("--cut")
    parser.add_argument("--save")
    parser.add_argument("--ranks", type=int, default=1)
    arguments = parser.parse_args()
    stored = opened(arguments.mcore, 0)
    print("keys:", ", ".join(stored), "| version", stored["checkpoint_version"], "| iteration", stored["iteration"])
    model = build(stored["args"])
    wanted = {name: tuple(value.shape) for name, value in model.state_dict().items() if value is not None}
    given = {name: tuple(value.shape) for name, value in stored["model"].items()}
    assert wanted == given, {k: (wanted.get(k), given.get(k)) for k in wanted.keys() | given.keys()
                             if wanted.get(k) != given.get(k)}
    print(f"{len(given)} names and shapes are those of megatron-core's GPTModel")
    model.load_state_dict(stored["model"], strict=False)
    model = model.float()
    original = AutoModelForCausalLM.from_pretrained(arguments.hf, dtype=torch.float32).eval()
    tokens = torch.randint(0, original.config.vocab_size, (2, 32), generator=torch.Generator().manual_seed(1))
    positions = torch.arange(32).expand(2, 32)
    mask = torch.ones(1, 1, 32, 32).tril() < 0.5
    with torch.no_grad():
        ours = model(tokens, positions, mask)[..., :original.config.vocab_size]
        apart = (ours - original(tokens).logits).abs().max().item()
    print("largest difference of logits:", apart)
    assert apart <= 1e-4
    if arguments.cut:
        count = len(os.listdir(os.path.join(arguments.cut, "iter_0000001")))
        ranks = [opened(arguments.cut, rank)["model"] for rank in range(count)]
        differ = [name for name, value in stored["model"].items()
                  if not torch.equal(value, together(name, [rank[name] for rank in ranks]))]
        print(f"{len(ranks)} ranks put together: {len(stored['model'])} tensors, {len(differ)} differ {differ[:3]}")
        assert not differ
    if arguments.save:
        save(arguments.save, arguments.ranks, dict(stored["args"]), model.state_dict())


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29613", RANK="0", WORLD_SIZE="1")
    torch.cuda.current_device = lambda: "cpu"  # where rotary embeddings are put
    tensor_parallel.get_cuda_rng_tracker = lambda: SimpleNamespace(fork=nullcontext)  # of dropout, which is 0
    moe_utils.te_general_gemm = None  # missing without Transformer Engine
    dist.init_process_group("gloo")
    parallel_state.initialize_model_parallel(1, 1)
    main()
    dist.destroy_process_group()
