#!/usr/bin/env bash
# From nothing to a trained model: installs what is missing, builds the program and trains a small Qwen2 on the C++
# standard library's headers, sharded over 2 ranks. The model is then in build/quickstart-model.
# Further arguments go to `shardloom train`: bash examples/quickstart.sh --train-iters 40
set -euo pipefail
cd "$(dirname "$0")/.."
. cmake/run_env.sh

bash cmake/install_packages.sh run
cmake --preset run -Wno-dev > /dev/null
cmake --build --preset run

headers="/usr/include/c++/$(c++ -dumpversion | cut -d. -f1)"
if [ ! -f "$headers/vector" ]; then
  echo "quickstart.sh: the C++ headers are not in $headers; set them as --data-path in this script" >&2
  exit 1
fi

# --- The run: change these freely -----------------------------------------------------------------------------------
run=(
  --model-config configs/models/quickstart.yaml
  --use-torch-fsdp2 --fsdp2-config-path configs/fsdp2/quickstart.yaml
  --nproc-per-node 2
  --data-path "$headers" --seq-length 256 --held-out-fraction 0.05
  --micro-batch-size 4 --train-iters 500
  --lr 2e-3 --min-lr 1e-4 --lr-decay-style cosine --lr-warmup-iters 30 --weight-decay 0.1 --adam-beta2 0.95
  --log-interval 10 --eval-interval 250 --eval-iters 20
  --sample-bytes 300 --prompt "template <class T>"
  --save build/quickstart-model
)
# --------------------------------------------------------------------------------------------------------------------
# A flag given to this script takes the place of its line above.
for word in "$@"; do
  for i in "${!run[@]}"; do
    [[ "$word" == --* && "${run[i]:-}" == "${word%%=*}" ]] || continue
    if [[ "${run[i + 1]:---}" != --* ]]; then unset "run[i + 1]"; fi
    unset "run[i]"
  done
done
exec build/run/shardloom train "${run[@]}" "$@"
