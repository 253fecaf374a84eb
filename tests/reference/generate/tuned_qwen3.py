"""tiny_qwen3 with parameters that are not trained: `frozen` of its first layer, `adapted` by adapters of peft."""

import pathlib

import peft
import torch
import transformers
from peft.tuners.tuners_utils import BaseTunerLayer

# Full sequences, as the recorder has them for a configuration.
transformers.masking_utils.find_packed_sequence_indices = lambda position_ids: None
# peft moves adapters to the device of their base, which fake tensors do not support and do not need.
BaseTunerLayer._move_adapter_to_device_of_base_layer = lambda *_, **__: None
torch.nn.Module.to = lambda module, *_, **__: module


def qwen3():
    config = transformers.AutoConfig.from_pretrained(pathlib.Path(__file__).parents[1] / "graphs" / "tiny_qwen3")
    config.use_cache = False
    return transformers.Qwen3ForCausalLM(config)


def frozen():
    model = qwen3()
    model.model.layers[0].requires_grad_(False)
    return model


def adapted():
    config = peft.LoraConfig(r=16, lora_alpha=32, target_modules=["q_proj", "v_proj"])
    return peft.get_peft_model(qwen3(), config, autocast_adapter_dtype=False)


def inputs(batch, sequence):
    return {name: torch.zeros((batch, sequence), dtype=torch.int64) for name in ("input_ids", "labels")}
