#!/usr/bin/env bash
# Promise: workers that are killed at random are started again, and the run ends with the weights of one that nothing disturbed, to
#          the bit.
# World:   `shardloom torchrun` with one agent of four workers, and with two agents of two workers, in turns, on this machine; a
#          checkpoint after each step, and up to three kills a run.
#   kills_test.sh PROGRAM SOURCE_FOLDER [KILLS [SEED]]      30 kills by default; the seed is printed
set -euo pipefail
program=$1
source=$2
kills=${3:-30}
RANDOM=${4:-$$}
echo "seed ${4:-$$}"
export OMP_WAIT_POLICY=passive
work=$(mktemp -d)
trap 'pkill -9 -f -- "--save $work/run" 2> /dev/null || true; rm -rf "$work"' EXIT
cd "$work"
seq 1 40000 > corpus.txt
steps=12
train=(train --model-config "$source/configs/models/quickstart.yaml" --data-path "$work/corpus.txt" --held-out-fraction 0
       --use-torch-fsdp2 --fsdp2-config-path "$source/configs/fsdp2/quickstart.yaml"
       --seq-length 32 --micro-batch-size 1 --global-batch-size 4 --lr 1e-3 --train-iters $steps --save-interval 1)
fail() { echo "FAILED: $1" >&2; tail -n 20 "$work"/agent.* >&2; exit 1; }
port=$((20000 + $$ % 10000))
"$program" "${train[@]}" --nproc-per-node 4 --save whole > whole.out 2>&1 || { cat whole.out; exit 1; }

# agents NODES WORKERS: starts them; sets `agents`.
agents() {
  agents=()
  for ((node = 0; node < $1; ++node)); do
    timeout 180 "$program" torchrun --nnodes "$1" --nproc-per-node "$2" --node-rank "$node" --master-addr 127.0.0.1 --master-port $port \
      --max-restarts 10 "${train[@]}" --save "$work/run" --load "$work/run" > "agent.$node" 2>&1 &
    agents+=($!)
  done
}
workers() { for agent in "${agents[@]}"; do pgrep -P "$(pgrep -P "$agent" || echo 0)" || true; done; }
running() { for agent in "${agents[@]}"; do kill -0 "$agent" 2> /dev/null && return 0; done; return 1; }
# Kills one worker after a random time; fails where the run has ended.
kill_one() {
  sleep "0.$((RANDOM % 9 + 1))"
  running || return 1
  local found
  mapfile -t found < <(workers)
  [ ${#found[@]} -gt 0 ] || return 0
  local signals=(KILL KILL SEGV ABRT)
  kill -"${signals[RANDOM % 4]}" "${found[RANDOM % ${#found[@]}]}" 2> /dev/null && done=$((done + 1)) || true
}

done=0
rounds=0
while [ $done -lt "$kills" ]; do
  rm -rf run
  if [ $((rounds % 2)) = 0 ]; then agents 1 4; else agents 2 2; fi
  for ((i = 0; i < 3; ++i)); do kill_one || break; done
  for agent in "${agents[@]}"; do wait "$agent" || fail "round $rounds: an agent ended with $?"; done
  for file in whole/iter_00000$steps/*.distcp; do
    cmp "$file" "run/iter_00000$steps/${file##*/}" || fail "round $rounds: other weights"
  done
  rounds=$((rounds + 1))
done
echo "passed: $done kills in $rounds runs"
