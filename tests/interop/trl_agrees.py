"""trl_agrees.py SHARDLOOM: the losses and rewards of trl's own trainers on the pairs that we preprocessed, on the folders
that we saved, are those of the step that we took: DPO (sigmoid, hinge, ipo), SimPO, and the reward model of --stage orm,
which transformers opens as ...ForSequenceClassification, and its adapters, which peft opens. Within 1e-5.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import torch
from datasets import Dataset
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer
from trl import DPOConfig, DPOTrainer, RewardConfig, RewardTrainer
from trl.experimental.cpo import CPOConfig, CPOTrainer

TREE = pathlib.Path(__file__).resolve().parents[2]
TOKENIZER = TREE / "tests/reference/sft/tokenizers/qwen2"
MODEL = """model_type: qwen2
vocab_size: 2048
hidden_size: 32
intermediate_size: 48
num_hidden_layers: 2
num_attention_heads: 4
num_key_value_heads: 2
max_position_embeddings: 256
rms_norm_eps: 1.0e-6
tie_word_embeddings: false
"""
ALLOWED = 1e-5


class Runs:
    """Runs of the program in a folder of their own, on all pairs at once."""

    def __init__(self, program, folder):
        self.program, self.folder = str(pathlib.Path(program).resolve()), folder
        (folder / "model.yaml").write_text(MODEL)
        self.call("preprocess", "--input", TREE / "tests/reference/sft/inputs/pair_alpaca.jsonl", "--handler-name",
                  "AlpacaStylePairwiseHandler", "--prompt-type", "qwen", "--tokenizer-name-or-path", TOKENIZER,
                  "--output-prefix", "pairs")
        self.pairs = len(read_pair(folder / "pairs_packed_chosen_input_ids_document"))

    def call(self, *words):
        subprocess.run([self.program, *map(str, words)], cwd=self.folder, check=True, stdout=subprocess.DEVNULL)

    def train(self, stage, *words):
        """The figures of the first step."""
        self.call("train", "--stage", stage, "--data-path", "pairs", "--split", "1,0,0", "--eval-iters", "0",
                  "--seq-length", "128", "--micro-batch-size", self.pairs, "--no-shuffle", "--tokenizer-name-or-path",
                  TOKENIZER, "--metrics-path", "metrics.jsonl", *words)
        step = json.loads((self.folder / "metrics.jsonl").read_text().splitlines()[0])
        return {"loss": step["loss"], **step["reports"]}


def read_pair(prefix):
    index = pathlib.Path(f"{prefix}.idx").read_bytes()
    dtype = {1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 8: np.uint16}[index[17]]
    count = int(np.frombuffer(index, np.int64, 1, 18)[0])
    lengths = np.frombuffer(index, np.int32, count, 34)
    ids = np.fromfile(f"{prefix}.bin", dtype)
    return [part.astype(np.int64) for part in np.split(ids, np.cumsum(lengths)[:-1])]


def rows(folder, key, length, fill):
    made = torch.full((0, length), fill)
    for answer in ("chosen", "rejected"):
        for line in read_pair(folder / f"pairs_packed_{answer}_{key}_document"):
            row = torch.full((1, length), fill)
            row[0, :len(line)] = torch.from_numpy(line)
            made = torch.cat([made, row])
    return made


def batch_of(folder):
    ids, labels = rows(folder, "input_ids", 128, 0), rows(folder, "labels", 128, -100)
    lengths = [len(line) for answer in ("chosen", "rejected")
               for line in read_pair(folder / f"pairs_packed_{answer}_input_ids_document")]
    mask = torch.zeros_like(ids)
    for row, length in enumerate(lengths):
        mask[row, :length] = 1
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def causal(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def common(folder):
    return {"output_dir": str(folder / "trl"), "report_to": "none", "use_cpu": True, "bf16": False,
            "gradient_checkpointing": False, "remove_unused_columns": False}


def placeholder_data():
    return Dataset.from_list([{"prompt": "a", "chosen": "b", "rejected": "c"}])


def mean_of(metrics, names):
    return {name: float(np.mean(metrics[theirs])) for name, theirs in names.items()}


REWARDS = {name: name for name in ("rewards/chosen", "rewards/rejected", "rewards/accuracies", "rewards/margins")}


def dpo(folder, batch, tokenizer, loss_type):
    trainer = DPOTrainer(model=causal(folder / "policy"), ref_model=causal(folder / "reference"),
                         args=DPOConfig(beta=0.1, loss_type=[loss_type], **common(folder)), processing_class=tokenizer,
                         train_dataset=placeholder_data())
    inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"],
              "completion_mask": (batch["labels"] != -100).long()}
    trainer.model.train()
    loss = trainer._compute_loss(trainer.model, inputs, return_outputs=False)
    return {"loss": loss.item(), **mean_of(trainer._metrics["train"], REWARDS)}


def simpo(folder, batch, tokenizer):
    trainer = CPOTrainer(model=causal(folder / "policy"),
                         args=CPOConfig(loss_type="simpo", cpo_alpha=0.0, beta=2.5, simpo_gamma=1.4 * 2.5,
                                        **common(folder)),
                         processing_class=tokenizer, train_dataset=placeholder_data())
    inputs = {}
    for answer, half in zip(("chosen", "rejected"), range(2)):
        for key in ("input_ids", "attention_mask", "labels"):
            inputs[f"{answer}_{key}"] = batch[key].chunk(2)[half]
    loss, metrics = trainer.get_batch_loss_metrics(trainer.model, inputs)
    return {"loss": loss.item(), **{name: metrics[name] for name in REWARDS}}


def reward_model(folder, batch, tokenizer, model):
    trainer = RewardTrainer(model=model, args=RewardConfig(**common(folder)), processing_class=tokenizer,
                            train_dataset=Dataset.from_list([{"chosen": "b", "rejected": "c"}]))
    trainer.model.train()
    loss = trainer.compute_loss(trainer.model, {key: batch[key] for key in ("input_ids", "attention_mask")})
    names = {"rewards/accuracies": "accuracy", "rewards/margins": "margin"}
    return {"loss": loss.item(), **mean_of(trainer._metrics["train"], names)}


def saved_reward_model(folder):
    return AutoModelForSequenceClassification.from_pretrained(folder / "reward", dtype=torch.float32)


def adapted_reward_model(folder):
    base = AutoModelForSequenceClassification.from_pretrained(folder / "reference", dtype=torch.float32, num_labels=1,
                                                              pad_token_id=0)
    return PeftModel.from_pretrained(base, folder / "adapters")


def differ(name, ours, theirs):
    worst = max(abs(ours[key] - value) for key, value in theirs.items())
    print(f"{name}: loss {ours['loss']:.6f}, {len(theirs)} figures, worst difference {worst:.1e}")
    return worst > ALLOWED


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        runs = Runs(sys.argv[1], folder)
        tokenizer = AutoTokenizer.from_pretrained(TOKENIZER)
        batch = batch_of(folder)
        start = ("--model-config", "model.yaml", "--lr", "0.02")
        runs.train("dpo", *start, "--train-iters", "2", "--save", "reference")
        runs.train("simpo", *start, "--train-iters", "4", "--save", "policy")
        runs.train("orm", *start, "--train-iters", "4", "--save", "reward")
        on = ("--init-from-hf-path", "policy", "--train-iters", "1")
        failed = False
        for loss_type in ("sigmoid", "hinge", "ipo"):
            ours = runs.train("dpo", *on, "--ref-model", "reference", "--dpo-loss-type", loss_type)
            failed |= differ(f"DPO {loss_type}", ours, dpo(folder, batch, tokenizer, loss_type))
        failed |= differ("SimPO", runs.train("simpo", *on), simpo(folder, batch, tokenizer))
        ours = runs.train("orm", "--init-from-hf-path", "reward", "--train-iters", "1")
        failed |= differ("reward model", ours, reward_model(folder, batch, tokenizer, saved_reward_model(folder)))
        base = ("--init-from-hf-path", "reference")
        runs.train("orm", *base, "--lora-target-modules", "all-linear", "--lora-r", "4", "--train-iters", "4", "--lr",
                   "0.02", "--save", "adapters")
        ours = runs.train("orm", *base, "--lora-load", "adapters", "--train-iters", "1")
        failed |= differ("adapters of a reward model", ours,
                         reward_model(folder, batch, tokenizer, adapted_reward_model(folder)))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
