"""A tiny InternVL of transformers in OpenGVLab's layout, in the form of tests/reference/vision.

usage: internvl_goldens.py VISION_DIR      reads VISION_DIR/images, writes VISION_DIR/internvl

The table of positions has 3 x 3 patches and tiles have 4 x 4: every figure is behind transformers' interpolation.
Weights are bf16 in the file and fp32 in memory, under the names of OpenGVLab's InternVLChatModel.
"""
import json, os, sys
import torch, transformers
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, AddedToken
from transformers import InternVLConfig, InternVLForConditionalGeneration

DIR = sys.argv[1]
OUT = os.path.join(DIR, "internvl")
TABLE, TILE, PATCH, MOST_TILES = 21, 28, 7, 4
TOKENS = (TILE // PATCH // 2) ** 2
ADDED = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<img>", "</img>", "<IMG_CONTEXT>", "<quad>", "</quad>",
         "<ref>", "</ref>", "<box>", "</box>"]
VOCAB = 256 + len(ADDED)
START, END, IMAGE = (256 + ADDED.index(token) for token in ("<img>", "</img>", "<IMG_CONTEXT>"))
STEPS, ROWS, LENGTH = 4, 2, 40
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
SYSTEM = "你是书生·万象，英文名是InternVL，是由上海人工智能实验室、清华大学及多家合作单位联合开发的多模态大语言模型。"
QUESTION, ASKED = "What is it?", [0, 3]

torch.manual_seed(78)
torch.set_num_threads(1)


# InternVL's dynamic preprocessing with a thumbnail; products in order, then columns. Bytes [tiles, 3, TILE, TILE].
def tiles_of(name):
    image = Image.open(f"{DIR}/images/{name}.png").convert("RGB")
    w, h = image.size
    grids = sorted(((i, j) for i in range(1, MOST_TILES + 1) for j in range(1, MOST_TILES + 1) if i * j <= MOST_TILES),
                   key=lambda g: (g[0] * g[1], g[0]))
    best, least = (1, 1), float("inf")
    for i, j in grids:
        difference = abs(w / h - i / j)
        if difference < least or (difference == least and w * h > 0.5 * TILE * TILE * i * j):
            best, least = (i, j), min(difference, least)
    i, j = best
    large = image.resize((i * TILE, j * TILE), Image.BICUBIC)
    tiles = [large.crop((x * TILE, y * TILE, (x + 1) * TILE, (y + 1) * TILE)) for y in range(j) for x in range(i)]
    if len(tiles) > 1: tiles.append(image.resize((TILE, TILE), Image.BICUBIC))
    values = torch.stack([torch.tensor(list(t.tobytes()), dtype=torch.uint8).view(TILE, TILE, 3) for t in tiles])
    return values.permute(0, 3, 1, 2).contiguous()


def pixels_of(tiles): return (tiles.float() / 255 - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)


tiles = [tiles_of(n) for n in range(6)]
pixels = [pixels_of(t) for t in tiles]
text = dict(vocab_size=VOCAB, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=1024, rms_norm_eps=1e-6, initializer_range=0.05,
            tie_word_embeddings=False, rope_theta=1000000.0)
vision = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, num_channels=3,
              layer_norm_eps=1e-6, initializer_range=0.02, norm_type="layer_norm")
config = InternVLConfig(
    text_config=dict(model_type="qwen2", **{k: v for k, v in text.items() if k != "rope_theta"},
                     rope_parameters=dict(rope_type="default", rope_theta=text["rope_theta"])),
    vision_config=dict(**vision, image_size=[TABLE, TABLE], patch_size=[PATCH, PATCH], attention_bias=True,
                       use_qk_norm=True, use_absolute_position_embeddings=True, use_mean_pooling=True,
                       layer_scale_init_value=0.5),
    image_token_id=IMAGE, image_seq_length=TOKENS, downsample_ratio=0.5, tie_word_embeddings=False)
config._attn_implementation = "eager"
model = InternVLForConditionalGeneration(config).float()
with torch.no_grad():  # large in the tower, so that wrong positions and rotations show
    for name, p in model.named_parameters():
        if "vision_tower" in name:
            if "position_embeddings" in name or "cls_token" in name: p.normal_(0, 1)
            elif p.ndim > 1: p.mul_(6)
            elif not name.endswith("bias"): p.add_(torch.randn_like(p) * 0.1)
        if name.endswith("bias"): p.normal_(0, 0.1)  # far from 0: their norms are no sums of AdamW's steps alone
        p.copy_(p.bfloat16().float())

# --- OpenGVLab's names
weights, stored = dict(model.named_parameters()), {}
def take(name): return weights.pop(name).detach().bfloat16()
tower = "model.vision_tower."
stored["vision_model.embeddings.class_embedding"] = take(tower + "embeddings.cls_token")
stored["vision_model.embeddings.position_embedding"] = take(tower + "embeddings.position_embeddings")
for kind in ("weight", "bias"):
    stored[f"vision_model.embeddings.patch_embedding.{kind}"] = take(f"{tower}embeddings.patch_embeddings.projection.{kind}")
for i in range(vision["num_hidden_layers"]):
    ours, theirs = f"{tower}encoder.layer.{i}.", f"vision_model.encoder.layers.{i}."
    for kind in ("weight", "bias"):
        stored[f"{theirs}attn.qkv.{kind}"] = torch.cat([take(f"{ours}attention.{x}_proj.{kind}") for x in "qkv"])
        for here, there in (("attention.projection_layer", "attn.proj"), ("layernorm_before", "norm1"),
                            ("layernorm_after", "norm2"), ("mlp.fc1", "mlp.fc1"), ("mlp.fc2", "mlp.fc2")):
            stored[f"{theirs}{there}.{kind}"] = take(f"{ours}{here}.{kind}")
    for x in "qk": stored[f"{theirs}attn.{x}_norm.weight"] = take(f"{ours}attention.{x}_norm.weight")
    for n in "12": stored[f"{theirs}ls{n}"] = take(f"{ours}lambda_{n}")
for here, there in (("layer_norm", 0), ("linear_1", 1), ("linear_2", 3)):
    for kind in ("weight", "bias"): stored[f"mlp1.{there}.{kind}"] = take(f"model.multi_modal_projector.{here}.{kind}")
for name in list(weights):
    stored[name.replace("model.language_model.", "language_model.model.").replace("lm_head", "language_model.lm_head")] = take(name)
os.makedirs(OUT, exist_ok=True)
save_file({k: v.contiguous() for k, v in stored.items()}, f"{OUT}/model.safetensors", {"format": "pt"})
json.dump(dict(architectures=["InternVLChatModel"], model_type="internvl_chat", downsample_ratio=0.5, ps_version="v2",
               select_layer=-1, force_image_size=TILE, dynamic_image_size=True, use_thumbnail=True, min_dynamic_patch=1,
               max_dynamic_patch=MOST_TILES, template="internvl2_5", pad2square=False, use_backbone_lora=0, use_llm_lora=0,
               torch_dtype="bfloat16",
               llm_config=dict(architectures=["Qwen2ForCausalLM"], model_type="qwen2", hidden_act="silu",
                               attention_dropout=0.0, use_cache=False, use_sliding_window=False, **text),
               vision_config=dict(architectures=["InternVisionModel"], model_type="intern_vit_6b", hidden_act="gelu",
                                  attention_dropout=0.0, dropout=0.0, drop_path_rate=0.1, initializer_factor=0.5,
                                  qkv_bias=True, qk_normalization=True, use_flash_attn=True, image_size=TABLE,
                                  patch_size=PATCH, **vision)), open(f"{OUT}/config.json", "w"), indent=1)
json.dump(dict(feature_extractor_type="CLIPFeatureExtractor", crop_size=TILE, size=TILE, do_center_crop=True,
               do_normalize=True, do_resize=True, image_mean=MEAN, image_std=STD, resample=3),
          open(f"{OUT}/preprocessor_config.json", "w"), indent=1)
alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
tokenizer.add_tokens([AddedToken(t, special=True, normalized=False) for t in ADDED])
tokenizer.save(f"{OUT}/tokenizer.json", pretty=False)


def picture(n): return [START] + [IMAGE] * (TOKENS * len(pixels[n])) + [END]


def row(numbers):
    ids = torch.randint(2, 250, (4,)).tolist()
    for number in numbers: ids += picture(number) + torch.randint(2, 250, (3,)).tolist()
    return (ids + torch.randint(2, 250, (LENGTH,)).tolist())[:LENGTH]


def inputs_of(numbers): return dict(pixel_values=torch.cat([pixels[n] for n in numbers]))


pictures = [[[int(torch.randint(0, 6, ()))] for _ in range(ROWS)] for _ in range(STEPS)]
ids = torch.tensor([[row(numbers) for numbers in rows] for rows in pictures])
labels = torch.where(ids < 250, ids, torch.full_like(ids, -100))

expected = {f"tiles.{n}": t for n, t in enumerate(tiles)}
with torch.no_grad():
    model.eval()
    for n in range(6): expected[f"features.{n}"] = model.model.get_image_features(pixels[n]).pooler_output.flatten(0, 1)
    expected["logits.0"] = model(input_ids=ids[0], **inputs_of(sum(pictures[0], []))).logits[:, ::4].contiguous()
    prompt_text = (f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n" +
                   "".join("<img>" + "<IMG_CONTEXT>" * (TOKENS * len(pixels[n])) + "</img>\n" for n in ASKED) +
                   f"{QUESTION}<|im_end|>\n<|im_start|>assistant\n")
    prompt = tokenizer.encode(prompt_text, add_special_tokens=False).ids
    made, gaps = list(prompt), []
    for _ in range(16):
        logits = model(input_ids=torch.tensor([made]), **inputs_of(ASKED)).logits[0, -1]
        best = logits.topk(2).values
        gaps.append((best[0] - best[1]).item())
        made.append(logits.argmax().item())

optimizer = dict(name="AdamW", lr=1e-3, betas=[0.9, 0.95], eps=1e-8, weight_decay=0.1, clip_grad=1.0)
adamw = torch.optim.AdamW(model.parameters(), lr=optimizer["lr"], betas=optimizer["betas"], eps=optimizer["eps"],
                          weight_decay=optimizer["weight_decay"])
curve, first_norms = [], {}
model.train()
for s in range(STEPS):
    logits = model(input_ids=ids[s], **inputs_of(sum(pictures[s], []))).logits
    loss = F.cross_entropy(logits[:, :-1].reshape(-1, VOCAB), labels[s][:, 1:].reshape(-1), ignore_index=-100)
    adamw.zero_grad()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), optimizer["clip_grad"]).item()
    if s == 0: first_norms = {n: p.grad.norm().item() for n, p in model.named_parameters()}
    adamw.step()
    curve.append(dict(step=s + 1, loss=loss.item(), grad_norm=norm))

save_file(expected, f"{OUT}/expected.safetensors")
json.dump(
    {"what": "InternVL in OpenGVLab's layout: 2 blocks, 2 text layers; made by tests/reference/generate/internvl_goldens.py",
     "torch": torch.__version__, "transformers": transformers.__version__,
     "pixel_values": "tiles.N: bytes; (byte / 255 - image_mean) / image_std of preprocessor_config.json", "input_ids": ids.tolist(), "labels": labels.tolist(), "pictures": pictures,
     "logits": "of step 0, every fourth position",
     "generation": {"question": QUESTION, "pictures": ASKED, "prompt": prompt, "tokens": made[len(prompt):],
                    "smallest_gap_of_best_two_logits": min(gaps)},
     "optimizer": optimizer, "curve": curve, "step1_grad_norm_by_param": first_norms,
     "final_weight_norm_by_param": {n: p.norm().item() for n, p in model.named_parameters()},
     "tolerance": {"features": 5e-05, "logits": 5e-05, "tokens": "equal", "loss": 5e-05, "grad_norm_relative": 0.0002,
                   "step1_grad_norm_relative": "1e-3 where the norm exceeds 1e-6 of the largest",
                   "final_weight_norm_relative": 0.0002}}, open(f"{OUT}/case.json", "w"))
print("tokens", made[len(prompt):], "smallest gap", min(gaps), "prompt", len(prompt), [len(p) for p in pixels])
for entry in curve: print(entry)
