"""What `shardloom convert hf-to-mcore` writes for one rank, in a GPTModel of megatron-core on the CPU.

usage: mcore_agrees.py MCORE HF [--save OUT]

MCORE    folder of the checkpoint (tensor, pipeline and expert size 1): torch.load(weights_only=True) opens its file, the
         model is built by the args in it, names and shapes are those of its state_dict, and it is loaded strictly.
HF       folder that it was made of: transformers' logits of the same tokens, within 1e-4.
--save   writes the model as Megatron does, args as argparse.Namespace: for `shardloom convert mcore-to-hf` to read.
"""
import argparse
import os
import warnings
from contextlib import nullcontext
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron.core import parallel_state, tensor_parallel
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.transformer_config import TransformerConfig
from transformers import AutoModelForCausalLM

FILE = "iter_0000001/mp_rank_00/model_optim_rng.pt"


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
    parser.add_argument("--save")
    arguments = parser.parse_args()
    stored = torch.load(os.path.join(arguments.mcore, FILE), weights_only=True)
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
    if arguments.save:
        path = os.path.join(arguments.save, FILE)
        os.makedirs(os.path.dirname(path))
        torch.save({"args": argparse.Namespace(**stored["args"]), "checkpoint_version": 3.0, "iteration": 1,
                    "model": model.state_dict(), "rng_state": [{"torch_rng_state": torch.get_rng_state()}]}, path)
        with open(os.path.join(arguments.save, "latest_checkpointed_iteration.txt"), "w") as tracker:
            tracker.write("1")


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
