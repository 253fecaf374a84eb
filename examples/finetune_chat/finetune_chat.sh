#!/usr/bin/env bash
# From nothing to a model that answers, in under five minutes on two cores: a tiny base model in a Hugging Face folder, an
# Alpaca file, `preprocess`, LoRA on two ranks, `merge`, and a turn of `chat`. docs/finetune-chat.md explains every step.
#
#   bash examples/finetune_chat/finetune_chat.sh [FOLDER]     default: build/finetune_chat; must not exist
#
# SHARDLOOM names a built program; without it the script installs what is missing and builds.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.."
. cmake/run_env.sh

work=${1:-build/finetune_chat}
if [ -e "$work" ]; then
  echo "finetune_chat.sh: '$work' exists; remove it or give another folder" >&2
  exit 1
fi
if [ -z "${SHARDLOOM:-}" ]; then
  bash cmake/install_packages.sh run
  cmake --preset run -Wno-dev > /dev/null
  cmake --build --preset run
  SHARDLOOM=$PWD/build/run/shardloom
fi
mkdir -p "$work"
step() { printf '\n== %s\n' "$*"; }

capitals=(France:Paris Italy:Rome Spain:Madrid Portugal:Lisbon Germany:Berlin Austria:Vienna Poland:Warsaw Hungary:Budapest
  Greece:Athens Norway:Oslo Sweden:Stockholm Finland:Helsinki Denmark:Copenhagen Ireland:Dublin Belgium:Brussels Egypt:Cairo
  Kenya:Nairobi Ghana:Accra Peru:Lima Chile:Santiago Cuba:Havana Canada:Ottawa Japan:Tokyo China:Beijing)

step "1. The texts: sentences for the base model, questions with answers for fine-tuning"
for pair in "${capitals[@]}"; do
  country=${pair%%:*} city=${pair##*:}
  printf '{"text": "The capital of %s is %s. %s is the capital of %s. Which city is the capital of %s? It is %s."}\n' \
    "$country" "$city" "$city" "$country" "$country" "$city" >> "$work/sentences.jsonl"
  printf '{"instruction": "What is the capital of %s?", "input": "", "output": "The capital of %s is %s."}\n' \
    "$country" "$country" "$city" >> "$work/alpaca.jsonl"
  printf '{"instruction": "%s is the capital of which country?", "input": "", "output": "%s is the capital of %s."}\n' \
    "$city" "$city" "$country" >> "$work/alpaca.jsonl"
done
bash "$here/tokenizer.sh" "$work/tokenizer"

step "2. The base model: a small Qwen2, trained on the sentences, saved as a Hugging Face folder"
"$SHARDLOOM" preprocess --input "$work/sentences.jsonl" --handler-name GeneralPretrainHandler \
  --tokenizer-name-or-path "$work/tokenizer" --append-eod --output-prefix "$work/sentences"
"$SHARDLOOM" train --model-config "$here/model.yaml" --tokenizer-name-or-path "$work/tokenizer" \
  --data-path "$work/sentences_text_document" --split 1,0,0 --seq-length 128 \
  --use-torch-fsdp2 --fsdp2-config-path "$here/fsdp2_config.yaml" --nproc-per-node 2 \
  --micro-batch-size 4 --train-iters 300 --lr 3e-3 --min-lr 3e-4 --lr-decay-style cosine --lr-warmup-iters 20 \
  --eval-iters 0 --log-interval 50 --save "$work/base"

step "3. The questions and answers as tokens, in the template of the chat"
"$SHARDLOOM" preprocess --input "$work/alpaca.jsonl" --handler-name AlpacaStyleInstructionHandler --prompt-type qwen \
  --tokenizer-name-or-path "$work/base" --seq-length 256 --output-prefix "$work/alpaca"

step "4. LoRA: adapters of rank 16 beside the frozen base, on two ranks"
"$SHARDLOOM" train --init-from-hf-path "$work/base" --stage sft --data-path "$work/alpaca" --split 1,0,0 \
  --seq-length 256 --variable-seq-lengths --use-torch-fsdp2 --fsdp2-config-path "$here/fsdp2_config.yaml" \
  --nproc-per-node 2 --lora-target-modules all-linear --lora-r 16 --lora-alpha 32 \
  --micro-batch-size 4 --train-iters 300 --lr 3e-3 --min-lr 3e-4 --lr-decay-style cosine --lr-warmup-iters 20 \
  --eval-iters 0 --log-interval 50 --save "$work/adapters"

step "5. Base and adapters become one model"
"$SHARDLOOM" merge --base "$work/base" --adapter "$work/adapters" --save "$work/tuned"

step "6. A question"
question="What is the capital of Italy?"
echo "> $question"
echo "$question" | "$SHARDLOOM" chat "$work/tuned" --max-new-tokens 64
