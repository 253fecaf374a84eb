#!/usr/bin/env bash
# The same training jobs by Shardloom and by PyTorch, side by side on this machine: times, their ratio, resident memory.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)

usage() {
  cat <<'TEXT'
Trains the same models with Shardloom and with PyTorch, in turn, and prints a table: step times, ratios, resident memory.
Usage: bench/peers/peers.sh [OPTIONS]

  --shapes LIST     of quick6M,d25M,d130M,qwen2.5-0.5B (default: d25M,d130M,qwen2.5-0.5B), see bench/peers/shapes
  --dtypes LIST     of fp32,bf16 (default: both); bf16 is param_dtype bf16 with fp32 reduction, autocast in one process
  --peers LIST      of fsdp,eager,compile (default: all): PyTorch FSDP2 over gloo with --ranks ranks of one thread; one
                    PyTorch process with a thread a core and the same global batch, eager or torch.compile
  --ranks N         ranks of Shardloom and of FSDP2 (default: 2), one thread each
  --rounds N        both sides in turn so often (default: 3); ratios are of neighbouring runs, the median counts
  --steps N         timed steps of a run, after one that is not timed (default: 5)
  --shardloom FILE  the program (default: build/release/shardloom)
  --python FILE     a Python with torch 2.11 and transformers 5; else a virtual environment is made with both from PyPI
  --cache FOLDER    where that environment is, or will be (default: ~/.cache/shardloom/peers)
  --out FILE        lines of JSON, one a run (default: in a folder for temporary files, which is then removed)
  --help            this text

Each round checks that both sides have the same number of parameters and that the loss falls on both; a run that does
not is an error, and its time does not count. Resident memory is the peak of the summed PSS of all processes of the job,
sampled ten times a second. Only ratios of neighbouring runs mean something on a machine that is shared.
Exit status: 0 done; 1 a run failed or a check did not hold; 2 the command line is wrong.
TEXT
}

wrong() { echo "bench/peers/peers.sh: $1; see bench/peers/peers.sh --help" >&2; exit 2; }

shapes=d25M,d130M,qwen2.5-0.5B dtypes=fp32,bf16 peers=fsdp,eager,compile ranks=2 rounds=3 steps=5
shardloom=$root/build/release/shardloom python='' cache=${XDG_CACHE_HOME:-$HOME/.cache}/shardloom/peers out=''
while (($#)); do
  case "$1" in
    --help | -h) usage; exit 0 ;;
    --shapes | --dtypes | --peers | --ranks | --rounds | --steps | --shardloom | --python | --cache | --out)
      (($# > 1)) || wrong "$1 needs a value"
      printf -v "${1#--}" '%s' "$2"
      shift 2 ;;
    *) wrong "unknown option '$1'" ;;
  esac
done

each_of() {  # OPTION LIST ALLOWED...
  local option=$1 value; local -a values
  IFS=, read -ra values <<<"$2"; shift 2
  for value in "${values[@]}"; do
    [[ " $* " == *" $value "* ]] || wrong "$option has '$value', expected some of: $*"
  done
}
each_of --shapes "$shapes" quick6M d25M d130M qwen2.5-0.5B
each_of --dtypes "$dtypes" fp32 bf16
each_of --peers "$peers" fsdp eager compile
for option in ranks rounds steps; do
  [[ ${!option} =~ ^[1-9][0-9]*$ ]] || wrong "--$option is '${!option}', expected a whole number from 1 on"
done
((steps > 1)) || wrong "--steps is 1, and a loss that falls takes 2 or more"
[[ -x $shardloom ]] || wrong "$shardloom is not there; build it (cmake --build --preset release) or give --shardloom FILE"

if [[ -z $python ]]; then
  python=$cache/bin/python
  if ! [[ -x $python ]] || ! "$python" -c 'import torch, transformers, yaml' 2>/dev/null; then
    echo "making $cache with torch 2.11 and transformers 5" >&2
    python3 -m venv "$cache"
    # The wheel for processors alone, where its index can be reached; that of PyPI computes the same on them.
    "$cache/bin/pip" install -q 'torch==2.11.*' --index-url https://download.pytorch.org/whl/cpu 2>/dev/null ||
      "$cache/bin/pip" install -q 'torch==2.11.*'
    "$cache/bin/pip" install -q 'transformers==5.*' pyyaml numpy
  fi
fi
"$python" -c 'import torch, transformers, yaml' || wrong "$python lacks torch, transformers or yaml"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
[[ -n $out ]] || out=$work/runs.jsonl
: >"$out"

# The text both sides read: the sources of this folder, over and over.
for ((i = 0; i < 200; ++i)); do cat "$here"/*.py; done >"$work/data.txt"

sequence_of() { case "$1" in quick6M) echo 256 ;; *) echo 512 ;; esac; }
micro_batch_of() { case "$1" in quick6M | d25M) echo 4 ;; d130M) echo 2 ;; *) echo 1 ;; esac; }
fsdp2_config() {  # DTYPE
  echo "sharding_size: auto"
  echo "sub_modules_to_wrap: ['model.embed_tokens','model.layers.{*}','lm_head']"
  [[ $1 == fp32 ]] || printf 'param_dtype: bf16\nreduce_dtype: fp32\n'
  echo "num_to_forward_prefetch: 1"
}

run_shardloom() {  # SHAPE DTYPE ROUND
  fsdp2_config "$2" >"$work/fsdp2.yaml"
  rm -f "$work/metrics.jsonl"
  OMP_WAIT_POLICY=passive "$python" "$here/measure.py" --out "$out" --peer shardloom --shape "$1" --dtype "$2" --round "$3" \
    --tokens $((ranks * $(micro_batch_of "$1") * $(sequence_of "$1"))) --metrics "$work/metrics.jsonl" -- \
    "$shardloom" train --model-config "$here/shapes/$1.yaml" --use-torch-fsdp2 --fsdp2-config-path "$work/fsdp2.yaml" \
    --data-path "$work/data.txt" --seq-length "$(sequence_of "$1")" --micro-batch-size "$(micro_batch_of "$1")" \
    --train-iters $((steps + 1)) --lr 1e-4 --lr-decay-style constant --weight-decay 0.01 --clip-grad 1 \
    --held-out-fraction 0 --metrics-path "$work/metrics.jsonl" --nproc-per-node "$ranks"
}

run_torch() {  # SHAPE DTYPE ROUND PEER
  local batch threads=1
  batch=$(micro_batch_of "$1")
  [[ $4 == fsdp ]] || { threads=$(nproc); batch=$((batch * ranks)); }
  rm -f "$work/metrics.jsonl"
  "$python" "$here/measure.py" --out "$out" --peer "torch-$4" --shape "$1" --dtype "$2" --round "$3" \
    --tokens $((ranks * $(micro_batch_of "$1") * $(sequence_of "$1"))) --metrics "$work/metrics.jsonl" -- \
    "$python" "$here/torch_peer.py" --model "$here/shapes/$1.yaml" --data "$work/data.txt" --dtype "$2" --mode "$4" \
    --ranks "$ranks" --threads "$threads" --sequence "$(sequence_of "$1")" --batch "$batch" --steps $((steps + 1)) \
    --metrics "$work/metrics.jsonl"
}

status=0
for shape in ${shapes//,/ }; do
  for dtype in ${dtypes//,/ }; do
    for ((round = 1; round <= rounds; ++round)); do
      for peer in ${peers//,/ }; do
        run_shardloom "$shape" "$dtype" "$round" || status=1
        run_torch "$shape" "$dtype" "$round" "$peer" || status=1
      done
    done
  done
done
"$python" "$here/table.py" "$out" || status=1
exit $status
