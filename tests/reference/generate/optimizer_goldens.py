"""Curves of PyTorch's optimizers from the weights and tokens of a training reference: SGD with dampening, AdamW under
Megatron's WSD, Muon with another rate for the rest.

usage: optimizer_goldens.py TRAINING_DIR OPTIM_DIR [CASE ...]     (OPTIM_DIR/schedules.json holds Megatron's own rates)
"""
import json, math, os, sys
import torch, torch.nn.functional as F, transformers
from safetensors.torch import load_file

TRAINING, OUT = sys.argv[1:3]
ONLY = sys.argv[3:]
BASE, STEPS, CLIP = "qwen2_w1_fp32", 20, 1.0
NS = [3.4445, -4.775, 2.0315]

CASES = {
    "sgd_dampening": ("SGD with momentum and dampening", {
        "optimizer": {"name": "SGD", "lr": 0.1, "momentum": 0.9, "dampening": 0.5, "weight_decay": 0.001, "nesterov": False}}),
    "adamw_wsd": ("AdamW; learning rates of Megatron's WSD schedule", {
        "optimizer": {"name": "AdamW", "lr": 0.001, "betas": [0.9, 0.95], "eps": 1e-08, "weight_decay": 0.1},
        "schedule": {"lr_decay_style": "WSD", "lr_warmup_steps": 3, "lr_decay_steps": 18, "init_lr": 0.0, "min_lr": 0.0001,
                     "lr_wsd_decay_style": "cosine", "wsd_decay_steps": 8}}),
    "muon_rest_lr": ("torch.optim.Muon on the matrices of the layers; AdamW with a learning rate of its own on embedding, "
                     "output layer (decay 0.1), norms and biases (no decay)", {
        "optimizer": {"name": "Muon", "lr": 0.002, "weight_decay": 0.1, "momentum": 0.95, "nesterov": True,
                      "ns_coefficients": NS, "eps": 1e-07, "ns_steps": 5, "adjust_lr_fn": "match_rms_adamw",
                      "rest": {"lr": 0.0005, "betas": [0.9, 0.95], "eps": 1e-08, "weight_decay": 0.1}}}),
}
TOLERANCE = {"loss": 5e-05, "grad_norm_relative": 0.0002, "step1_grad_norm_relative": 0.001,
             "final_weight_norm_relative": 0.0002, "step1_update_norm_relative": 0.002}

def wsd(n, max_lr, s):
    if n <= s["lr_warmup_steps"] and s["lr_warmup_steps"] > 0:
        return s["init_lr"] + (max_lr - s["init_lr"]) * n / s["lr_warmup_steps"]
    if n > s["lr_decay_steps"]: return s["min_lr"]
    begin = s["lr_decay_steps"] - s["wsd_decay_steps"]
    if n <= begin: return max_lr
    r = (n - begin) / s["wsd_decay_steps"]
    c = {"linear": 1 - r, "cosine": 0.5 * (math.cos(math.pi * r) + 1), "exponential": 2 * 0.5 ** r - 1,
         "minus_sqrt": 1 - math.sqrt(r)}[s["lr_wsd_decay_style"]]
    return s["min_lr"] + c * (max_lr - s["min_lr"])

def check_wsd():
    seen = 0
    for entry in json.load(open(f"{OUT}/schedules.json"))["schedules"]:
        a = entry["arguments"]
        if a["lr_decay_style"] != "WSD": continue
        seen += 1
        for n, lr in enumerate(entry["lr"]): assert abs(wsd(n, a["max_lr"], a) - lr) <= 1e-15, (a, n)
    assert seen > 0

def optimizers(model, o):
    named = list(model.named_parameters())
    if o["name"] == "SGD":
        return [torch.optim.SGD([p for _, p in named], lr=o["lr"], momentum=o["momentum"], dampening=o["dampening"],
                                weight_decay=o["weight_decay"], nesterov=o["nesterov"])]
    if o["name"] == "AdamW":
        return [torch.optim.AdamW([p for _, p in named], lr=o["lr"], betas=tuple(o["betas"]), eps=o["eps"],
                                  weight_decay=o["weight_decay"])]
    vocabulary = ("model.embed_tokens.weight", "lm_head.weight")
    hidden = [p for n, p in named if p.dim() == 2 and n not in vocabulary]
    r = o["rest"]
    return [torch.optim.Muon(hidden, lr=o["lr"], weight_decay=o["weight_decay"], momentum=o["momentum"],
                             nesterov=o["nesterov"], ns_coefficients=tuple(o["ns_coefficients"]), eps=o["eps"],
                             ns_steps=o["ns_steps"], adjust_lr_fn=o["adjust_lr_fn"]),
            torch.optim.AdamW([{"params": [p for n, p in named if n in vocabulary], "weight_decay": r["weight_decay"]},
                               {"params": [p for _, p in named if p.dim() == 1], "weight_decay": 0.0}],
                              lr=r["lr"], betas=tuple(r["betas"]), eps=r["eps"])]

def train(scenario, dtype=torch.float32, threads=1):
    torch.set_num_threads(threads)
    folder = f"{TRAINING}/{BASE}"
    config = transformers.AutoConfig.from_pretrained(folder)
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config).to(dtype)
    model.load_state_dict({k: v.to(dtype) for k, v in load_file(f"{folder}/model.safetensors").items()})
    tokens = load_file(f"{folder}/tokens.safetensors")["tokens"].long()
    opts = optimizers(model, scenario["optimizer"])
    tops = [[g["lr"] for g in opt.param_groups] for opt in opts]
    out = {"curve": []}
    for step in range(STEPS):
        lr = scenario["optimizer"]["lr"]
        if "schedule" in scenario: lr = wsd(step, lr, scenario["schedule"])
        for opt, top in zip(opts, tops):
            for group, most in zip(opt.param_groups, top): group["lr"] = most * (lr / scenario["optimizer"]["lr"])
        batch = tokens[step]
        logits = model(input_ids=batch[:, :-1]).logits
        loss = F.cross_entropy(logits.float().flatten(0, 1) if dtype == torch.float32 else logits.flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        out["curve"].append({"step": step + 1, "loss": loss.item(), "grad_norm": norm.item(), "lr": lr})
        if step == 0:
            out["step1_grad_norm_by_param"] = {n: p.grad.double().norm().item() for n, p in model.named_parameters()}
            before = {n: p.detach().clone() for n, p in model.named_parameters()}
        for opt in opts: opt.step()
        for opt in opts: opt.zero_grad()
        if step == 0:
            out["step1_update_norm_by_param"] = {n: (p.detach() - before[n]).double().norm().item() for n, p in model.named_parameters()}
    out["final_weight_norm_by_param"] = {n: p.detach().double().norm().item() for n, p in model.named_parameters()}
    return out

def noise(a, b):
    worst = lambda key: max(abs(x[key] - y[key]) for x, y in zip(a["curve"], b["curve"]))
    relative = lambda key: max(abs(a[key][n] - b[key][n]) / max(a[key][n], 1e-12) for n in a[key])
    return {"loss": worst("loss"), "grad_norm": worst("grad_norm"), "final_weight_norm": relative("final_weight_norm_by_param"),
            "step1_update_norm": relative("step1_update_norm_by_param")}

check_wsd()
for name, (what, asked) in CASES.items():
    if ONLY and name not in ONLY: continue
    scenario = {"base": f"shared/reference/training/{BASE}", "steps": STEPS, **asked, "clip_grad": CLIP}
    run = train(scenario)
    tolerance = dict(TOLERANCE)
    if asked["optimizer"]["name"] == "Muon":   # as tests/reference/optim/muon
        tolerance = json.load(open(f"{OUT}/muon/curve.json"))["tolerance"]
    found = {"what": what, "torch": torch.__version__, "transformers": transformers.__version__, "scenario": scenario, **run,
             "tolerance": tolerance, "noise": {"two_threads": noise(run, train(scenario, threads=2)),
                                               "float64": noise(run, train(scenario, dtype=torch.float64))}}
    os.makedirs(f"{OUT}/{name}", exist_ok=True)
    with open(f"{OUT}/{name}/curve.json", "w") as file: json.dump(found, file, indent=1); file.write("\n")
    print(name, found["curve"][-1], found["noise"], flush=True)
