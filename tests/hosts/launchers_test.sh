#!/usr/bin/env bash
# Promise: torchrun, msrun, srun's variables and plain variables start ranks on two and four hosts, which keep what every process
#          group promises and train to the bits of one host; a worker, a host and a cable that fail end the run with a named cause, or
#          restart it, and the restarted run has the losses of one that nothing disturbed.
# World:   network namespaces (hosts.sh) and the built program.
#   launchers_test.sh PROGRAM SOURCE_FOLDER CONFORMANCE   (the program of tests/comm/process_conformance.cpp)
# Skipped (exit status 77) with a reason where this process may not make network namespaces.
set -euo pipefail
program=$1
source=$2
conformance=$3
hosts=$(cd "$(dirname "$0")" && pwd)/hosts.sh
export LOOM_HOSTS=lh$$ OMP_WAIT_POLICY=passive SHARDLOOM_SECRET=of-the-test

skip() { echo "skipped: $1"; exit 77; }
fail() { echo "FAILED: $1" >&2; exit 1; }
command -v ip > /dev/null || skip "iproute2 is not installed"
[ "$(id -u)" = 0 ] || skip "network namespaces need root"

work=$(mktemp -d)
trap 'bash "$hosts" down; rm -rf "$work"' EXIT
bash "$hosts" up 4 2> "$work/up.err" || skip "no network namespaces here: $(tail -n 1 "$work/up.err")"
cd "$work"
seq 1 40000 > corpus.txt
first=10.78.0.10
train=(train --model-config "$source/configs/models/quickstart.yaml" --data-path "$work/corpus.txt" --held-out-fraction 0
       --use-torch-fsdp2 --fsdp2-config-path "$source/configs/fsdp2/quickstart.yaml"
       --seq-length 32 --micro-batch-size 1 --global-batch-size 4 --lr 1e-3)
on() { timeout 120 bash "$hosts" on "$@"; }
# all COUNT NAME WORDS...: a command on the first COUNT hosts at once, where HOST in a word is the host's number; output in NAME.HOST.
# Sets `failed` to the hosts whose command failed.
all() {
  local count=$1 name=$2 host
  shift 2
  local pids=()
  for ((host = 0; host < count; ++host)); do
    on "$host" "${@//HOST/$host}" > "$name.$host" 2>&1 &
    pids+=($!)
  done
  failed=
  for ((host = 0; host < count; ++host)); do wait "${pids[host]}" || failed+=" $host"; done
}
passed() { [ -z "$failed" ] || { tail -n 20 "$1".*; fail "$1: hosts$failed"; }; }
losses() { grep -o '"loss":[^,]*' "$1"; }
same_as_one() {
  passed "$1"
  cmp one/model.safetensors "$1.model/model.safetensors" || fail "$1 has other weights than one host"
  [ "$(losses one/metrics.jsonl)" = "$(losses "$1.model/metrics.jsonl")" ] || fail "$1 has other losses than one host"
}
torchrun() {  # torchrun NODES WORKERS: the words of the guides
  echo "$program" torchrun --nproc_per_node "$2" --nnodes "$1" --node_rank HOST --master_addr "$first" --master_port 6000
}

"$program" "${train[@]}" --train-iters 4 --nproc-per-node 4 --save one > one.out 2>&1 || { cat one.out; fail "one host"; }

# --- variables
rank=(env RANK=HOST WORLD_SIZE=4 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR=$first MASTER_PORT=6001)
all 4 promises "${rank[@]}" "$conformance" hosts
passed promises
grep -q "kept by 4 processes: rings_turn" promises.0 || fail "the promises were not checked"
all 4 variables "${rank[@]}" GLOO_SOCKET_IFNAME=eth0 "$program" "${train[@]}" --train-iters 4 --save variables.model
same_as_one variables
all 4 srun env SLURM_STEP_ID=0 SLURM_JOB_ID=77 SLURM_PROCID=HOST SLURM_NTASKS=4 SLURM_LOCALID=0 SLURM_NODEID=HOST \
  "SLURM_TASKS_PER_NODE=1(x4)" "SLURM_JOB_NODELIST=$first,b,c,d" "$program" "${train[@]}" --train-iters 4 --save srun.model
same_as_one srun
all 2 secret env RANK=HOST WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR=$first MASTER_PORT=6001 SHARDLOOM_SECRET=sHOST \
  "$program" "${train[@]}" --train-iters 4
[ "$failed" = " 0 1" ] || fail "another secret is not refused"
grep -q "does not know this job's secret" secret.0 || { cat secret.*; fail "another secret is not named"; }

# --- launchers
# shellcheck disable=SC2046  # words
all 2 two $(torchrun 2 2) "${train[@]}" --train-iters 4 --save two.model
same_as_one two
# shellcheck disable=SC2046
all 4 four $(torchrun 4 1) "${train[@]}" --train-iters 4 --save four.model
same_as_one four
all 2 elastic "$program" torchrun --nnodes=2 --nproc-per-node=2 --rdzv-id=job1 --rdzv-backend=c10d --rdzv-endpoint=$first:29400 \
  "${train[@]}" --train-iters 4 --save elastic.model
same_as_one elastic
msrun() {  # msrun NAME HOSTS WORKERS
  all "$2" "$1" "$program" msrun --local_worker_num="$3" --worker_num=4 --node_rank=HOST --master_addr=$first --master_port=6000 \
    --log_dir="$1_log.HOST" --join=True --cluster_time_out=300 --bind_core=True "$program" "${train[@]}" --train-iters 4 \
    --save "$1.model" --ai-framework mindspore
  same_as_one "$1"
}
msrun msrun 2 2
msrun msrun_of_four 4 1
grep -q "model written to msrun.model" msrun_log.0/worker_0.log || fail "msrun has no log of rank 0"
for rank in 2 3; do [ -e "msrun_log.1/worker_$rank.log" ] || fail "msrun has no log of rank $rank"; done

# --- scripts, as for NPUs, with the paths of this machine
export HF_PATH=$source/tests/reference/training/qwen2_w4_fp32 DATA_PATH=$work/corpus.txt TRAIN_ITERS=4
script=$source/examples/pretrain_transformers/pretrain.sh
export PROGRAM=${program%/*}/examples/pretrain_transformers
NPUS_PER_NODE=4 SAVE_PATH=script.one bash "$script" > script.out 2>&1 || { cat script.out; fail "pretrain.sh on one host"; }
all 2 script env NNODES=2 NODE_RANK=HOST MASTER_ADDR=$first SAVE_PATH=script.model bash "$script"
passed script
cmp script.one/model.safetensors script.model/model.safetensors || fail "pretrain.sh has other weights on two hosts"
mkdir -p bin logs
printf '#!/bin/sh\nexec "%s" torchrun "$@"\n' "$program" > bin/torchrun
chmod +x bin/torchrun
cat > guide.sh <<END
#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=2
export HCCL_CONNECT_TIMEOUT=1800
NPUS_PER_NODE=2
MASTER_ADDR=$first
MASTER_PORT=6000
NNODES=2
NODE_RANK=\$1
DISTRIBUTED_ARGS="
    --nproc_per_node \$NPUS_PER_NODE \\
    --nnodes \$NNODES \\
    --node_rank \$NODE_RANK \\
    --master_addr \$MASTER_ADDR \\
    --master_port \$MASTER_PORT
"
torchrun \$DISTRIBUTED_ARGS $program ${train[*]} --train-iters 4 --distributed-backend nccl --save guide.model \
  2>&1 | tee logs/train_\$NODE_RANK.log
exit \${PIPESTATUS[0]}
END
all 2 guide env "PATH=$work/bin:$PATH" bash guide.sh HOST
same_as_one guide

# --- failures
run=("${train[@]}" --train-iters 30 --save-interval 1)
"$program" "${run[@]}" --nproc-per-node 4 --save whole > whole.out 2>&1 || { cat whole.out; fail "the run that nothing disturbs"; }
# disturbed NAME HOW WORDS...: torchrun with WORDS on two hosts; after some steps, HOW.
disturbed() {
  local name=$1 how=$2
  shift 2
  (
    for _ in $(seq 200); do [ "$(cat "$name.model/latest_checkpointed_iteration.txt" 2> /dev/null || echo 0)" -ge 5 ] && break; sleep 0.1; done
    "$how"
  ) &
  local disturber=$!
  all 2 "$name" "$@" "${run[@]}" --save "$name.model" --load "$name.model"
  wait "$disturber"
}
# Process numbers begin anew at 32768, so the last one is not always the last worker. What has ended by itself is not killed.
kill_worker() {  # local rank 1 of host 1
  local pid
  for pid in $(ip netns pids "${LOOM_HOSTS}1"); do
    if grep -qzx 'LOCAL_RANK=1' "/proc/$pid/environ" 2> /dev/null; then kill -9 "$pid" || true; fi
  done
}
kill_host() { ip netns pids "${LOOM_HOSTS}1" | xargs -r kill -9 || true; }
# shellcheck disable=SC2046
disturbed worker kill_worker $(torchrun 2 2) --max-restarts 3
passed worker
for file in whole/iter_0000030/*.distcp; do
  cmp "$file" "worker.model/iter_0000030/${file##*/}" || fail "a restart after a killed worker has other weights"
done
# shellcheck disable=SC2046
disturbed named kill_worker $(torchrun 2 2)
[ "$failed" = " 0 1" ] || fail "a killed worker without restarts ends with success"
grep -Eq "rank 3.*SIGKILL|SIGKILL.*rank 3" named.0 || { tail -n 30 named.0; fail "the killed rank and its signal are not named"; }
disturbed host kill_host "$program" torchrun --nnodes=1:2 --nproc-per-node=2 --rdzv-id=job2 --rdzv-backend=c10d \
  --rdzv-endpoint=$first:29400 --rdzv-conf=last_call_timeout=2 --max-restarts 3
[ "$failed" = " 1" ] || { tail -n 30 host.0; fail "the first host does not go on without the second"; }
[ "$(cat host.model/latest_checkpointed_iteration.txt)" = 30 ] || fail "the run without a host does not end"
# On another number of ranks sums have another order.
last() { tail -n 1 "$1.model/metrics.jsonl" | grep -o '"loss":[0-9.]*' | cut -d: -f2; }
awk -v a="$(tail -n 1 whole/metrics.jsonl | grep -o '"loss":[0-9.]*' | cut -d: -f2)" -v b="$(last host)" \
  'BEGIN { exit !(a - b < 1e-3 && b - a < 1e-3 && a > 0) }' || fail "the run without a host has another loss"

cut_cable() { bash "$hosts" cut 1; }
disturbed cable cut_cable "$program" torchrun --nnodes=1:2 --nproc-per-node=2 --rdzv-id=job3 --rdzv-backend=c10d \
  --rdzv-endpoint=$first:29400 --rdzv-conf=last_call_timeout=2,read_timeout=10 --max-restarts 3
[ "$failed" = " 1" ] || { tail -n 30 cable.0; fail "the first host does not go on when the cable is cut"; }
[ "$(cat cable.model/latest_checkpointed_iteration.txt)" = 30 ] || fail "the run without a cable does not end"
grep -q "the coordinator at $first:29400 is lost" cable.1 || { tail -n 30 cable.1; fail "the host without a cable does not say so"; }
echo "passed"
