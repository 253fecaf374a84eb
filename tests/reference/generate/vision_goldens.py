"""A tiny Qwen3-VL of transformers, in the form of tests/reference/vision.

usage: vision_goldens.py VISION_DIR      reads VISION_DIR/images, writes VISION_DIR/qwen3_vl

There is no video: transformers 5 puts text between the frames of Qwen3-VL's videos.
"""
import json, os, sys
import torch, transformers
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

DIR = sys.argv[1]
OUT = os.path.join(DIR, "qwen3_vl")
IMAGE, VIDEO, START, END = 252, 253, 250, 251
STEPS, ROWS, LENGTH = 10, 2, 48

torch.manual_seed(77)
torch.set_num_threads(1)
grids = [image["grid_thw"] for image in json.load(open(f"{DIR}/images/case.json"))["images"]]
pixels = load_file(f"{DIR}/images/pixel_values.safetensors")
tokens = [t * h * w // 4 for t, h, w in grids]

config = Qwen3VLConfig(
    text_config=dict(vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4,
                     num_key_value_heads=2, head_dim=16, max_position_embeddings=512, rms_norm_eps=1e-6,
                     initializer_range=0.05, tie_word_embeddings=False, bos_token_id=0, eos_token_id=1,
                     rope_parameters=dict(rope_type="default", rope_theta=5000000.0, mrope_section=[4, 2, 2],
                                          mrope_interleaved=True)),
    vision_config=dict(depth=3, hidden_size=32, num_heads=2, intermediate_size=96, out_hidden_size=64, patch_size=14,
                       spatial_merge_size=2, temporal_patch_size=2, in_channels=3, num_position_embeddings=64,
                       deepstack_visual_indexes=[0, 2], initializer_range=0.02),
    image_token_id=IMAGE, video_token_id=VIDEO, vision_start_token_id=START, vision_end_token_id=END,
    tie_word_embeddings=False)
config._attn_implementation = "eager"
model = Qwen3VLForConditionalGeneration(config).float()
with torch.no_grad():  # large in the tower, so that wrong rotations and positions show
    for name, p in model.named_parameters():
        if "visual" not in name: continue
        if p.ndim > 1: p.mul_(6)
        elif name.endswith("bias"): p.normal_(0, 0.1)
os.makedirs(OUT, exist_ok=True)
config.save_pretrained(OUT)
model.save_pretrained(OUT)


def row(numbers):
    ids = torch.randint(2, 250, (4,)).tolist()
    for number in numbers:
        ids += [START] + [IMAGE] * tokens[number] + [END] + torch.randint(2, 250, (3,)).tolist()
    return ids[:LENGTH]


def inputs_of(numbers):
    return dict(pixel_values=torch.cat([pixels[f"pixel_values.{n}"] for n in numbers]),
                image_grid_thw=torch.tensor([grids[n] for n in numbers]))


def types_of(ids):
    return dict(mm_token_type_ids=(ids == IMAGE).long() + 2 * (ids == VIDEO).long())


pictures = [[torch.randint(0, 6, (1 + int(torch.rand(()) < 0.3),)).tolist() for _ in range(ROWS)] for _ in range(STEPS)]
ids = torch.zeros(STEPS, ROWS, LENGTH, dtype=torch.int64)
mask = torch.zeros_like(ids)
labels = torch.full_like(ids, -100)
for s in range(STEPS):
    for r in range(ROWS):
        made = torch.tensor(row(pictures[s][r]))
        ids[s, r, :len(made)] = made
        mask[s, r, :len(made)] = 1
        scored = (made < 250)
        labels[s, r, :len(made)][scored] = made[scored]

expected = {}
with torch.no_grad():
    model.eval()
    for n in range(6):
        out = model.model.get_image_features(**inputs_of([n]))
        expected[f"tower.{n}"] = torch.cat([f for f in out.pooler_output])
        for i, deep in enumerate(out.deepstack_features):
            expected[f"tower.{n}.deepstack.{i}"] = torch.cat(list(deep)) if isinstance(deep, (tuple, list)) else deep
    for s in (0, 1):
        numbers = sum(pictures[s], [])
        given = inputs_of(numbers)
        expected[f"image_features.{s}"] = torch.cat([f for f in model.model.get_image_features(**given).pooler_output])
        positions, delta = model.model.get_rope_index(ids[s], image_grid_thw=given["image_grid_thw"], attention_mask=mask[s],
                                                      **types_of(ids[s]))
        expected[f"position_ids.{s}"] = positions.int()
        expected[f"rope_delta.{s}"] = delta.flatten().int()
        expected[f"logits.{s}"] = model(input_ids=ids[s], attention_mask=mask[s], **given, **types_of(ids[s])).logits
    prompt = row([0, 3])[:-1]
    prompt_ids = torch.tensor([prompt])
    made, gaps = list(prompt), []
    for _ in range(16):
        now = torch.tensor([made])
        logits = model(input_ids=now, attention_mask=torch.ones_like(now), **inputs_of([0, 3]), **types_of(now)).logits[0, -1]
        best = logits.topk(2).values
        gaps.append((best[0] - best[1]).item())
        made.append(logits.argmax().item())
    cached = model.generate(input_ids=prompt_ids, attention_mask=torch.ones_like(prompt_ids), max_new_tokens=16, do_sample=False,
                            eos_token_id=None, **inputs_of([0, 3]), **types_of(prompt_ids))[0].tolist()

optimizer = dict(name="AdamW", lr=1e-3, betas=[0.9, 0.95], eps=1e-8, weight_decay=0.1, clip_grad=1.0)
adamw = torch.optim.AdamW(model.parameters(), lr=optimizer["lr"], betas=optimizer["betas"], eps=optimizer["eps"],
                          weight_decay=optimizer["weight_decay"])
curve, first_norms = [], {}
model.train()
for s in range(STEPS):
    logits = model(input_ids=ids[s], attention_mask=mask[s], **inputs_of(sum(pictures[s], [])), **types_of(ids[s])).logits
    loss = F.cross_entropy(logits[:, :-1].reshape(-1, 256).float(), labels[s][:, 1:].reshape(-1), ignore_index=-100)
    adamw.zero_grad()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), optimizer["clip_grad"]).item()
    if s == 0: first_norms = {n: p.grad.norm().item() for n, p in model.named_parameters() if p.grad is not None}
    adamw.step()
    curve.append(dict(step=s + 1, loss=loss.item(), grad_norm=norm))

save_file({k: v.contiguous() for k, v in expected.items()}, f"{OUT}/expected.safetensors")
save_file({"input_ids": ids.int(), "labels": labels.int(), "attention_mask": mask.int()}, f"{OUT}/batches.safetensors")
json.dump(
    {"what": "qwen3_vl: 3 blocks in the tower, deepstack of 2, 3 text layers; made by tests/reference/generate/vision_goldens.py",
     "torch": torch.__version__, "transformers": transformers.__version__,
     "names_in_file": "as transformers writes them", "pictures": pictures,
     "pixel_values": "../images/pixel_values.safetensors, joined in the order of pictures",
     "generation": {"prompt": prompt, "pictures": [0, 3], "tokens": made[len(prompt):],
                    "equal_without_cache": cached[len(prompt):] == made[len(prompt):],
                    "smallest_gap_of_best_two_logits": min(gaps)},
     "freeze": None, "loss": "cross-entropy of position t against label t+1, mean over labels other than -100 of the batch",
     "optimizer": optimizer, "curve": curve, "step1_grad_norm_by_param": first_norms,
     "final_weight_norm_by_param": {n: p.norm().item() for n, p in model.named_parameters()},
     "tolerance": {"position_ids": "equal", "rope_delta": "equal", "image_features": 5e-05,
                   "logits": "5e-5, unmasked positions", "tokens": "equal", "loss": 5e-05, "grad_norm_relative": 0.0002,
                   "step1_grad_norm_relative": "1e-3 where the norm exceeds 1e-6 of the largest",
                   "final_weight_norm_relative": 0.0002}}, open(f"{OUT}/case.json", "w"), indent=1)
print("tokens", made[len(prompt):], "with a cache equal:", cached == made, "smallest gap", min(gaps))
for entry in curve[:3]: print(entry)
