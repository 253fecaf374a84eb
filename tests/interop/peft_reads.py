"""peft_reads.py BASE ADAPTER [MERGED]: peft opens an adapter that we wrote; with MERGED, the logits of base and adapter
are those of the model that `shardloom merge` wrote, within 1e-5.

    peft_reads.py --make BASE ADAPTER   peft writes an adapter with random values, for `merge` and --lora-load to read
"""
import sys

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM


def base_of(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def make(base_folder, folder):
    torch.manual_seed(1)
    base = base_of(base_folder)
    conv1d = base.config.model_type == "gpt2"
    config = LoraConfig(r=4, lora_alpha=12, target_modules="all-linear", init_lora_weights=False,
                        fan_in_fan_out=conv1d, task_type="CAUSAL_LM")
    get_peft_model(base, config).save_pretrained(folder)


def check(base_folder, folder, merged_folder):
    ids = torch.arange(48).reshape(2, 24) * 7 % base_of(base_folder).config.vocab_size
    model = PeftModel.from_pretrained(base_of(base_folder), folder).eval()
    stored = load_file(f"{folder}/adapter_model.safetensors")
    held = {name.replace(".default", ""): value for name, value in model.state_dict().items() if "lora_" in name}
    differ = [name for name in held if name not in stored or not torch.equal(held[name], stored[name].float())]
    print(f"{len(held)} tensors of the adapter, {len(differ)} differ {differ[:3]}")
    failed = bool(differ) or len(held) == 0
    if merged_folder:
        with torch.no_grad():
            worst = (model(ids).logits - base_of(merged_folder)(ids).logits).abs().max().item()
            moved = (model(ids).logits - base_of(base_folder)(ids).logits).abs().max().item()
        print(f"logits of the merged model differ by {worst:.1e}, those of the base by {moved:.1e}")
        failed = failed or worst > 1e-5 or moved < 1e-4
    return 1 if failed else 0


if sys.argv[1] == "--make":
    make(sys.argv[2], sys.argv[3])
else:
    sys.exit(check(sys.argv[1], sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else None))
