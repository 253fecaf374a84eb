#!/usr/bin/env bash
# A launch script as it is used on NPUs, with this engine's program in the place of torchrun and Python:
#   HF_PATH=DIR DATA_PATH=FILES bash examples/pretrain_transformers/pretrain.sh [more flags]
# On one machine ranks are threads of one process. On several, start it on each with NNODES, NODE_RANK and MASTER_ADDR.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

export CUDA_DEVICE_MAX_CONNECTIONS=2

NPUS_PER_NODE=${NPUS_PER_NODE:-2}
MASTER_ADDR=${MASTER_ADDR:-localhost}
MASTER_PORT=${MASTER_PORT:-6000}
NNODES=${NNODES:-1}
NODE_RANK=${NODE_RANK:-0}
WORLD_SIZE=$((NPUS_PER_NODE * NNODES))

PROGRAM=${PROGRAM:-$here/../../build/release/examples/pretrain_transformers}
HF_PATH=${HF_PATH:?set HF_PATH to a folder with config.json and safetensors}
DATA_PATH=${DATA_PATH:?set DATA_PATH to files or folders of text}
SAVE_PATH=${SAVE_PATH:-}
FSDP2_CONFIG=${FSDP2_CONFIG:-$here/fsdp2_config.yaml}
MICRO_BATCH_SIZE=${MICRO_BATCH_SIZE:-2}

distributed_args=(
  --nproc_per_node "$NPUS_PER_NODE" --nnodes "$NNODES" --node_rank "$NODE_RANK"
  --master_addr "$MASTER_ADDR" --master_port "$MASTER_PORT"
)
fsdp2_args=(
  --use-torch-fsdp2 --fsdp2-config-path "$FSDP2_CONFIG"
  --untie-embeddings-and-output-weights --init-model-with-meta-device
  --distributed-backend npu:hccl,cpu:gloo
)
training_args=(
  --tensor-model-parallel-size 1 --pipeline-model-parallel-size 1 --context-parallel-size 1
  --micro-batch-size "$MICRO_BATCH_SIZE" --global-batch-size $((MICRO_BATCH_SIZE * WORLD_SIZE))
  --seq-length "${SEQ_LENGTH:-64}" --train-iters "${TRAIN_ITERS:-20}"
  --lr 1e-3 --min-lr 1e-4 --lr-decay-style cosine --weight-decay 0.1 --clip-grad 1.0
  --adam-beta1 0.9 --adam-beta2 0.95 --log-interval 1
)
output_args=()
if [ -n "$SAVE_PATH" ]; then output_args=(--save "$SAVE_PATH"); fi

exec "$PROGRAM" "${distributed_args[@]}" "${fsdp2_args[@]}" "${training_args[@]}" \
  --init-from-hf-path "$HF_PATH" --data-path $DATA_PATH "${output_args[@]}" "$@"
