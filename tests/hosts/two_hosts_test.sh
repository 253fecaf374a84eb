#!/usr/bin/env bash
# Promise: ranks on two hosts keep what every process group promises, and train to the bits of one host, of its threads and of its
#          processes, also where they share experts, sequences and matrices; when the link between the hosts is cut, both ranks end
#          within the deadline, and each names the collective and the rank that did not come.
# World:   two network namespaces (two_hosts.sh), the built program under mpirun, one rank on each, and two.
#   two_hosts_test.sh PROGRAM SOURCE_FOLDER CONFORMANCE   (the program of tests/comm/process_conformance.cpp)
# Skipped (exit status 77) with a reason where this process may not make network namespaces.
set -euo pipefail
program=$1
source=$2
conformance=$3
hosts=$(cd "$(dirname "$0")" && pwd)/two_hosts.sh
export LOOM_HOSTS=lmt$$

skip() { echo "skipped: $1"; exit 77; }
fail() { echo "FAILED: $1" >&2; exit 1; }
command -v ip > /dev/null || skip "iproute2 is not installed"
command -v mpirun > /dev/null || skip "mpirun is not installed"
[ "$(id -u)" = 0 ] || skip "network namespaces need root"

work=$(mktemp -d)
trap 'bash "$hosts" down; rm -rf "$work"' EXIT
bash "$hosts" up 2> "$work/up.err" || skip "no network namespaces here: $(tail -n 1 "$work/up.err")"

cd "$work"
seq 1 40000 > corpus.txt
train=(train --model-config "$source/configs/models/quickstart.yaml" --data-path "$work/corpus.txt" --held-out-fraction 0
       --use-torch-fsdp2 --fsdp2-config-path "$source/configs/fsdp2/quickstart.yaml"
       --seq-length 32 --micro-batch-size 1 --global-batch-size 2 --lr 1e-3)

# --- the promises of a process group
timeout 120 bash "$hosts" run "$conformance" hosts > promises.out 2>&1 || { cat promises.out; fail "a promise of process groups"; }
grep -q "kept by 2 processes: rings_turn" promises.out || { cat promises.out; fail "the promises were not checked"; }

# --- the bits of one host
"$program" "${train[@]}" --train-iters 3 --nproc-per-node 2 --save "$work/one" > one.out 2>&1 || { cat one.out; fail "one host"; }
timeout 120 bash "$hosts" run "$program" "${train[@]}" --train-iters 3 --save "$work/two" > two.out 2>&1 || { cat two.out; fail "two hosts"; }
cmp one/model.safetensors two/model.safetensors || fail "two hosts have other weights than one"
losses() { grep -o '"loss":[^,]*' "$1"; }
[ "$(losses one/metrics.jsonl)" = "$(losses two/metrics.jsonl)" ] || fail "two hosts have other losses than one"

# --- experts, sequences and matrices that both hosts share
cat > moe.yaml <<'END'
{model_type: qwen3_moe, vocab_size: 256, hidden_size: 16, intermediate_size: 24, num_hidden_layers: 2, num_attention_heads: 4,
 num_key_value_heads: 2, head_dim: 8, max_position_embeddings: 32, rms_norm_eps: 1.0e-6, num_experts: 4, num_experts_per_tok: 2,
 moe_intermediate_size: 8, norm_topk_prob: true, decoder_sparse_step: 1, mlp_only_layers: [], tie_word_embeddings: false}
END
one_host=(mpirun --oversubscribe --bind-to none)
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_WAIT_POLICY=passive
# same_bits NAME RANKS KEYS: a run with these keys of the sharding file, as threads, as processes of one host, and on two.
same_bits() {
  printf 'sharding_size: auto\nsub_modules_to_wrap: [model.embed_tokens, "model.layers.{*}", lm_head]\n%b' "$3" > "$1.yaml"
  local run=(train --model-config "$work/moe.yaml" --data-path "$work/corpus.txt" --held-out-fraction 0 --use-torch-fsdp2
             --fsdp2-config-path "$work/$1.yaml" --seq-length 32 --micro-batch-size 1 --global-batch-size 4 --lr 1e-2 --train-iters 4)
  "$program" "${run[@]}" --nproc-per-node "$2" --save "$work/$1.threads" > "$1.out" 2>&1 || { cat "$1.out"; fail "$1: threads"; }
  timeout 120 "${one_host[@]}" -n "$2" "$program" "${run[@]}" --save "$work/$1.one" > "$1.out" 2>&1 ||
    { cat "$1.out"; fail "$1: processes of one host"; }
  LOOM_RANKS_PER_HOST=$(($2 / 2)) timeout 120 bash "$hosts" run "$program" "${run[@]}" --save "$work/$1.two" > "$1.out" 2>&1 ||
    { cat "$1.out"; fail "$1: two hosts"; }
  for where in one two; do
    cmp "$1.threads/model.safetensors" "$1.$where/model.safetensors" || fail "$1: $where has other weights than threads"
    [ "$(losses "$1.threads/metrics.jsonl")" = "$(losses "$1.$where/metrics.jsonl")" ] || fail "$1: $where has other losses than threads"
  done
  [ "$(losses "$1.threads/metrics.jsonl" | wc -l)" = 4 ] || fail "$1: not four steps"
}
experts='moe_modules: ["model.layers.{*}.mlp.experts"]\nexpert_parallel_size: '
same_bits experts 2 "${experts}2\\n"
same_bits ring 2 'ring_attention_size: 2\n'
same_bits ulysses 2 'ulysses_parallel_size: 2\n'
same_bits all 4 "${experts}4\\nring_attention_size: 2\\nulysses_parallel_size: 2\\n"
# With two parts of matrices, shards cross the link; with four, sums of products do.
same_bits matrices 4 'tensor_parallel_size: 2\nsequence_parallel: true\n'
same_bits matrices_of_four 4 'tensor_parallel_size: 4\n'
same_bits matrices_and_sequences 4 'tensor_parallel_size: 2\nsequence_parallel: true\nring_attention_size: 2\n'

# --- a cut link
export LOOM_MPIRUN_ARGS="--output-filename $work/ranks"
bash "$hosts" run "$program" "${train[@]}" --train-iters 1000000 --metrics-path "$work/cut.jsonl" \
  --distributed-timeout-minutes 1 > cut.out 2>&1 &
run=$!
steps() { [ -f cut.jsonl ] && [ "$(wc -l < cut.jsonl)" -gt 3 ]; }
for _ in $(seq 120); do steps && break; sleep 0.5; done
steps || { cat cut.out; fail "the run under test does not step"; }
bash "$hosts" cut
running() { pgrep -f -- "--metrics-path $work/cut.jsonl" | while read -r pid; do
  [ "$(readlink "/proc/$pid/exe")" = "$(readlink -f "$program")" ] && echo "$pid"; done; true; }
# The deadline is 60 s; 30 more for ending.
for _ in $(seq 90); do [ -z "$(running)" ] && break; sleep 1; done
[ -z "$(running)" ] || fail "ranks still run 90 s after the link was cut: $(running)"
for rank in 0 1; do
  text=$(cat "$work"/ranks/*/rank.$rank/stderr)
  grep -Eq "^\[rank $rank\] (all_gather|reduce_scatter|all_reduce|broadcast|barrier) '.*' in group '.*' \(ranks 0,1\): rank $((1 - rank)) did not come within 60 s" \
    <<< "$text" || { echo "$text"; fail "rank $rank does not name the collective and the rank it waited for"; }
done
kill -9 "$run" 2> /dev/null || true  # mpirun waits for its daemon behind the link
echo "passed"
