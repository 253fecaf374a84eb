#include "engine/cli/words/foreign_flags.h"

namespace loom::cli {
namespace {

constexpr std::string_view kAny = kAnyValue;

// Taken in silence, or refused.
constexpr ForeignFlag kForeignFlags[] = {
    {"--gradient-accumulation-fusion", 0, "",
     "does not go with FSDP2, which reduces the gradients itself; remove it or write "
     "--no-gradient-accumulation-fusion"},
    {"--no-gradient-accumulation-fusion", 0, kAny, ""},
    {"--pipeline-model-parallel-size", 1, "1",
     "FSDP2 does not go with pipeline stages; write 1, and let sharding_size in the file of --fsdp2-config-path split "
     "the model"},
    {"--expert-model-parallel-size", 1, "1",
     "FSDP2 does not go with Megatron's expert parallelism; write 1: experts are sharded like all parameters"},
    {"--tensor-model-parallel-size", 1, "1",
     "tensor parallelism is not built; write 1, and let sharding_size in the file of --fsdp2-config-path split the "
     "weights"},
    {"--context-parallel-size", 1, "1", "context parallelism is not built; write 1"},
    {"--sequence-parallel", 0, "", "goes with tensor parallelism, which is not built; remove it"},
    {"--enable-recompute-layers-per-pp-rank", 0, kAny, ""},  // one pipeline stage: the same either way
    {"--recompute-in-bubble", 0, "",
     "recomputes while a pipeline stage waits, and FSDP2 has no stages; remove it: the flags of "
     "--recompute-granularity "
     "recompute in backward"},
    {"--recompute-in-advance", 0, "",
     "recomputes before a pipeline stage's backward, and FSDP2 has no stages; remove it: the flags of "
     "--recompute-granularity recompute in backward"},
    {"--moe-adaptive-recompute-activation", 0, "",
     "chooses in each step by how many tokens an expert got, so that ranks would do different work; write "
     "--moe-layer-recompute, which always recomputes"},
    {"--moe-adaptive-recompute-activation-scale", 1, "",
     "is of --moe-adaptive-recompute-activation, which is not built; remove it"},
    {"--nnodes", 1, "1",
     "ranks on several machines are started by an MPI launcher; write mpirun -n RANKS before the program, without "
     "--nnodes and --nproc-per-node"},
    {"--node-rank", 1, "0",
     "ranks on several machines are started by an MPI launcher; write mpirun -n RANKS before the program, without "
     "--nnodes and --nproc-per-node"},
    {"--master-addr", 1, kAny, ""},  // threads of a process need no meeting point, and MPI has its own
    {"--master-port", 1, kAny, ""},
    {"--join", 1, kAny, ""},  // the program always waits for its ranks
    {"--cluster-time-out", 1, "", "is not a flag here; write --distributed-timeout-minutes N"},
    {"--log-dir", 1, "", "is not a flag here: the ranks of a process share its output; remove it and redirect that"},
    {"--mm-data", 1, "", "is not a flag here; write --data-path PATH"},
    {"--mm-model", 1, "", "is not a flag here; write --model-config FILE, or --init-from-hf-path DIR"},
    {"--mm-tool", 1, "", "is not a flag here; the flags of --profile are its profiler; remove it"},
    {"--rampup-batch-size", 1, "", "is not built; write one --global-batch-size"},
    {"--tokenizer-type", 1, "PretrainedFromHF|HuggingFaceTokenizer|NullTokenizer",
     "only tokenizers of Hugging Face's are read; write PretrainedFromHF, and --tokenizer-name-or-path DIR with a "
     "tokenizer.json"},
    {"--log-num-zeros-in-grad", 0, "", "is not built: zeros of gradients are not counted; remove it"},
    {"--timing-log-level", 1, "0",
     "timers of a step's parts are not built; write 0, and use --profile to see the parts"},
    {"--wandb-project", 1, "", "names a project of Weights & Biases, which is not built; write --tensorboard-dir DIR"},
    {"--wandb-exp-name", 1, "", "names a run of Weights & Biases, which is not built; write --tensorboard-dir DIR"},
    {"--overlap-grad-reduce", 0, "", "is of Megatron's DDP; FSDP2 overlaps the reduction by itself; remove it"},
    {"--virtual-optimizer", -1, "",
     "maps moments in host memory into the device, which is not built; write --optimizer adamw_swap, which copies "
     "them"},
    {"--overlap-param-gather", 0, "", "is of Megatron's optimizer; FSDP2 gathers ahead by itself; remove it"},
};

// Taken and named in one line, or refused: what they describe is in the model's configuration, is always so here, or
// belongs to what is not there (loader processes).
constexpr ForeignFlag kWithoutEffect[] = {
    {"--num-workers", 1, kAny, ""},
    {"--adaptive-recompute-profiling-step", 1, kAny, ""},  // costs come from plans
    {"--use-mcore-models", 0, kAny, ""},
    {"--transformer-impl", 1, kAny, ""},
    {"--prompt-type", 1, kAny, ""},  // of training data it was read when that was made
    {"--prompt-type-path", 1, kAny, ""},
    {"--refer-model-iter", 1, "1", "the reference model is a folder's; write 1, and --ref-model DIR"},
    {"--tokenizer-not-use-fast", 0, kAny, ""},
    {"--tokenizer-padding-side", 1, "right", "padding stands behind samples; write right"},
    {"--full-shuffle-instruction-dataset", 0, "",
     "is a shuffle by Python's own generator, which is not built; remove it: each epoch is shuffled"},
    {"--group-query-attention", 0, kAny, ""},
    {"--max-position-embeddings", 1, kAny, ""},
    {"--make-vocab-size-divisible-by", 1, kAny, ""},
    {"--init-method-std", 1, kAny, ""},
    {"--normalization", 1, kAny, ""},
    {"--position-embedding-type", 1, kAny, ""},
    {"--use-rotary-position-embeddings", 0, kAny, ""},
    {"--swiglu", 0, kAny, ""},
    {"--qk-layernorm", 0, kAny, ""},
    {"--add-qkv-bias", 0, kAny, ""},
    {"--disable-bias-linear", 0, kAny, ""},
    {"--attention-softmax-in-fp32", 0, kAny, ""},
    {"--no-masked-softmax-fusion", 0, kAny, ""},
    {"--no-bias-gelu-fusion", 0, kAny, ""},
    {"--no-bias-swiglu-fusion", 0, kAny, ""},
    {"--no-bias-dropout-fusion", 0, kAny, ""},
    {"--attention-dropout", 1, "0|0.0|0.", "dropout is not built; write 0"},
    {"--hidden-dropout", 1, "0|0.0|0.", "dropout is not built; write 0"},
    {"--lora-fusion", 0, kAny, ""},       // hides communication of tensor parallelism
    {"--lora-ckpt-filter", 0, kAny, ""},  // checkpoints of adapters have nothing else
    {"--lora-register-forward-hook", -1, kAny, ""},
    {"--qlora", 0, "", "stores the base in 4 bits, which is not built; remove it"},
};

// Held against the model's configuration (model_flags.h), and otherwise as those above.
constexpr ForeignFlag kOfModel[] = {
    {"--num-layers", 1, kAny, ""},          {"--hidden-size", 1, kAny, ""},       {"--ffn-hidden-size", 1, kAny, ""},
    {"--num-attention-heads", 1, kAny, ""}, {"--num-query-groups", 1, kAny, ""},  {"--kv-channels", 1, kAny, ""},
    {"--vocab-size", 1, kAny, ""},          {"--padded-vocab-size", 1, kAny, ""}, {"--rotary-base", 1, kAny, ""},
    {"--norm-epsilon", 1, kAny, ""},
};

bool accepts(const ForeignFlag& flag, std::string_view value) {
  if (flag.accepted == kAny) return true;
  if (flag.values == 0 || flag.accepted.empty()) return false;
  for (std::string_view rest = flag.accepted;;) {
    const std::size_t bar = rest.find('|');
    if (rest.substr(0, bar) == value) return true;
    if (bar == std::string_view::npos) return false;
    rest.remove_prefix(bar + 1);
  }
}

std::string refusal(const ForeignFlag& flag, const std::string& value) {
  if (flag.accepted.empty()) return fmt::format("{} {}", flag.name, flag.advice);
  return fmt::format("{} is {}; {}", flag.name, value, flag.advice);
}

std::string as_written(const ForeignFlag& flag, const std::string& value) {
  return flag.values == 0 ? std::string(flag.name) : fmt::format("{} {}", flag.name, value);
}

}  // namespace

void add_without_effect(Flags& flags, std::span<const ForeignFlag> table, std::vector<std::string>& refused,
                        std::vector<std::string>& without_effect) {
  for (const ForeignFlag& flag : table) {
    flags.noted(std::string(flag.name), flag.values, [&](const std::string& value) {
      const bool accepted = accepts(flag, value);
      (accepted ? without_effect : refused).push_back(accepted ? as_written(flag, value) : refusal(flag, value));
    });
  }
}

void add_foreign_flags(Flags& flags, ForeignFlags& given) {
  for (const ForeignFlag& flag : kForeignFlags) {
    flags.noted(std::string(flag.name), flag.values, [&](const std::string& value) {
      if (!accepts(flag, value)) given.refused.push_back(refusal(flag, value));
    });
  }
  add_without_effect(flags, kWithoutEffect, given.refused, given.without_effect);
  for (const ForeignFlag& flag : kOfModel) {
    flags.noted(std::string(flag.name), flag.values, [&](const std::string& value) {
      given.without_effect.push_back(as_written(flag, value));
      given.of_model.emplace_back(flag.name, value);
    });
  }
  flags.noted("--use-distributed-optimizer", 0, [&given](const std::string&) { given.distributed_optimizer = true; });
  flags.noted("--bf16", 0, [&given](const std::string&) { given.bf16 = true; });
  flags.noted("--worker-num", 1, [&given](const std::string& value) { given.worker_num = value; });
}

}  // namespace loom::cli
