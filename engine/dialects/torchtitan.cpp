// torchtitan's overrides: `--module llama3 --config llama3_8b --training.steps 100 activation-checkpoint:full`. It has
// no files.
//
// Source    torchtitan, config/configs.py.
#include <fmt/format.h>

#include "engine/core/parse_number.h"
#include "engine/dialects/tool_rules.h"

namespace loom::dialects {
namespace {

constexpr std::string_view kParallel = "is not built; write 1";

const Row kRows[] = {
    derived("parallelism.data_parallel_shard_degree", "-1", "sharding_size").written([](const Resolved& r) -> Said {
      return fmt::to_string(r.config.sharding_size == sharding::Fsdp2Config::kAllRanks
                                ? -1
                                : r.config.sharding_size / r.config.ring_attention_size);
    }),
    derived("parallelism.data_parallel_replicate_degree", "1", "sharding_size").written([](const Resolved& r) -> Said {
      const int size = r.config.sharding_size;
      return fmt::to_string(size == sharding::Fsdp2Config::kAllRanks ? 1
                                                                     : r.world / r.config.tensor_parallel_size / size);
    }),
    derived("parallelism.fsdp_reshard_after_forward", "default", "reshard_after_forward")
        .written([](const Resolved& r) -> Said {
          const Said text = boolean_text(r.config.reshard_after_forward.text());
          return text ? Said(*text == "true" ? "always" : "never") : std::nullopt;
        }),
    flat("parallelism.tensor_parallel_degree", "1", "tensor_parallel_size"),
    refused("parallelism.pipeline_parallel_degree", "1", kParallel),
    derived("parallelism.context_parallel_degree", "1", "ring_attention_size").written(ring_size),
    derived("parallelism.context_parallel_rotate_method", "allgather", "ring_rotate_method").written(ring_rotation),
    refused("parallelism.expert_parallel_degree", "1", kParallel),
    derived("parallelism.enable_sequence_parallel", "true", "sequence_parallel").written([](const Resolved& r) -> Said {
      if (r.config.tensor_parallel_size == 1) return std::nullopt;
      return r.config.sequence_parallel ? "true" : "false";
    }),
    derived("parallelism.disable_loss_parallel", "false", "loss_parallel").written([](const Resolved& r) -> Said {
      return r.config.loss_parallel ? std::nullopt : Said("true");
    }),
    derived("parallelism.enable_async_tensor_parallel", "false", "overlap_slices")
        .written([](const Resolved& r) -> Said { return r.config.overlap_slices == 1 ? std::nullopt : Said("true"); }),
    refused("parallelism.enable_fsdp_symm_mem", "false", "symmetric memory is not built; write false"),
    derived("training.num_tokens_per_microbatch_per_dp_rank", "16384", "--micro-batch-size")
        .written([](const Resolved& r) -> Said {
          return fmt::to_string(std::int64_t{r.job.schedule.micro_batch_size} * r.job.data.seq_length);
        }),
    derived("training.max_context_length", "2048", "--seq-length").written([](const Resolved& r) -> Said {
      return value_of(r, "--seq-length");
    }),
    derived("training.num_tokens_per_train_step", "-1", "--global-batch-size").written([](const Resolved& r) -> Said {
      const std::int64_t batch = r.job.schedule.global_batch_size;
      return batch == 0 ? Said("-1") : Said(fmt::to_string(batch * r.job.data.seq_length));
    }),
    derived("training.local_batch_size", "null", "--micro-batch-size"),
    derived("training.global_batch_size", "null", "--global-batch-size"),
    derived("training.seq_len", "null", "--seq-length"),
    flag("training.steps", "10000", "--train-iters"),
    flag("training.max_norm", "1.0", "--clip-grad"),
    flat("training.enable_cpu_offload", "false", "offload_to_cpu"),
    flat("training.mixed_precision_param", "bfloat16", "param_dtype").as("bfloat16=bf16|float16=fp16|float32=fp32"),
    flat("training.mixed_precision_reduce", "float32", "reduce_dtype").as("float32=fp32|bfloat16=bf16"),
    flag("training.dtype", "float32", "--params-dtype").as("float32=fp32|bfloat16=bf16"),
    unused("training.gc_freq"),
    unused("training.disable_cuda_graphs"),
    unused("comm.*"),
    flag("debug.seed", "null", "--seed"),
    unused("debug.*"),
    derived("activation_checkpoint.mode", "selective", "recompute_modules, use_reentrant"),
    derived("activation_checkpoint.selective_ac_option", "op", "recompute_keep, recompute_every"),
    unused("optimizer.name", "AdamW"),
    flag("optimizer.lr", "8e-4", "--lr"),
    flag("optimizer.beta1", "0.9", "--adam-beta1"),
    flag("optimizer.beta2", "0.95", "--adam-beta2"),
    flag("optimizer.eps", "1e-8", "--adam-eps"),
    flag("optimizer.weight_decay", "0.1", "--weight-decay"),
    unused("optimizer.implementation"),
    flag("lr_scheduler.warmup_steps", "200", "--lr-warmup-iters"),
    refused("lr_scheduler.decay_ratio", "null",
            "a constant part before the decay is not built for this dialect; remove it"),
    flag("lr_scheduler.decay_type", "linear", "--lr-decay-style").as("linear|cosine"),
    derived("lr_scheduler.min_lr_factor", "0", "--min-lr"),
    derived("checkpoint.enable", "false", "--save"),
    derived("checkpoint.folder", "checkpoint", "--save"),
    derived("checkpoint.interval", "500", "--save-interval"),
    derived("checkpoint.keep_latest_k", "10", "--keep-last"),
    derived("checkpoint.last_save_in_hf", "false", "--ckpt-format"),
    derived("checkpoint.export_dtype", "null", "--save-dtype"),
    unused("checkpoint.*"),
    unused("compile.*"),
    unused("profiler.*"),
    unused("profiling.*"),
    unused("metrics.*"),
};

void derive_batch_of_tokens(Reading& r) {
  const std::string_view length_key =
      r.is_given("training.seq_len") ? "training.seq_len" : "training.max_context_length";
  r.set_flag_from("--seq-length", length_key);
  const std::int64_t length = parse_number<std::int64_t>(r.word_of("--seq-length").value_or("0")).value_or(0);
  if (length < 1) return;
  constexpr std::string_view kMicro = "training.num_tokens_per_microbatch_per_dp_rank";
  constexpr std::string_view kStep = "training.num_tokens_per_train_step";
  const auto count_of = [&](std::string_view key) -> std::optional<std::int64_t> {
    const std::int64_t tokens = r.whole(key);
    if (tokens >= length && tokens % length == 0) return tokens / length;
    r.refuse(key, fmt::format("it is no multiple of {} {}; make it one", length_key, length));
    return std::nullopt;
  };
  if (r.is_given("training.local_batch_size")) {
    r.set_flag_from("--micro-batch-size", "training.local_batch_size");
  } else if (const auto micro = count_of(kMicro)) {
    r.set_flag("--micro-batch-size", {fmt::to_string(*micro)}, kMicro);
  }
  if (r.is_given("training.global_batch_size") && r.whole("training.global_batch_size") > 0) {
    r.set_flag_from("--global-batch-size", "training.global_batch_size");
  } else if (r.whole(kStep) > 0) {
    if (const auto batch = count_of(kStep)) r.set_flag("--global-batch-size", {fmt::to_string(*batch)}, kStep);
  }
}

void derive_recompute(Reading& r) {
  const std::string mode = r.text("activation_checkpoint.mode");
  constexpr std::string_view kMode = "activation_checkpoint.mode",
                             kOption = "activation_checkpoint.selective_ac_option";
  if (mode == "none") return;
  if (mode != "full" && mode != "selective")
    return r.refuse(kMode, "a memory budget is not built; write full, selective or none");
  r.set_key("recompute_modules", job::Texts{"model.layers.{*}"}, kMode);
  r.set_key("use_reentrant", "false", kMode);
  if (mode == "full") return;
  const std::string option = r.text(kOption);
  if (option == "op") return r.set_key("recompute_keep", "selected_ops", kOption);
  r.set_key("recompute_every", option, kOption);
}

// Ranks that share matrices, at least 1.
std::int64_t derive_tensor(Reading& r) {
  const std::int64_t ranks = r.whole("parallelism.tensor_parallel_degree");
  if (ranks <= 1) return 1;
  constexpr std::string_view kSequence = "parallelism.enable_sequence_parallel",
                             kLoss = "parallelism.disable_loss_parallel",
                             kAsync = "parallelism.enable_async_tensor_parallel";
  if (r.flag(kSequence)) r.set_key("sequence_parallel", "true", kSequence);
  if (r.flag(kLoss)) r.set_key("loss_parallel", "false", kLoss);
  if (r.flag(kAsync)) r.set_key("overlap_slices", fmt::to_string(train::kMc2Slices), kAsync);
  return ranks;
}

void derive_sizes(Reading& r) {
  const std::int64_t shard = r.whole("parallelism.data_parallel_shard_degree");
  const std::int64_t replicas = r.whole("parallelism.data_parallel_replicate_degree");
  constexpr std::string_view kShard = "parallelism.data_parallel_shard_degree";
  const std::int64_t context =
      derive_ring(r, "parallelism.context_parallel_degree", "parallelism.context_parallel_rotate_method");
  const std::int64_t tensor = derive_tensor(r), shared = product({context, tensor, replicas});
  if (replicas < 1 ||
      (r.knows_world() && (r.world() % shared != 0 || (shard > 0 && product({shard, shared}) != r.world())))) {
    return r.refuse("parallelism.data_parallel_replicate_degree",
                    fmt::format("{} x {}{}{} is not the {} ranks; make them equal", replicas, shard,
                                context == 1 ? "" : fmt::format(" x {}", context),
                                tensor == 1 ? "" : fmt::format(" x {}", tensor), r.world()));
  }
  r.set_key("sharding_size",
            shard > 0       ? fmt::to_string(product({shard, context}))
            : replicas == 1 ? "auto"
                            : fmt::to_string(r.world() / tensor / replicas),
            kShard);
  const std::string reshard = r.text("parallelism.fsdp_reshard_after_forward");
  constexpr std::string_view kReshard = "parallelism.fsdp_reshard_after_forward";
  if (reshard != "default" && reshard != "always" && reshard != "never")
    r.refuse(kReshard, "use default, always or never");
  r.set_key("reshard_after_forward", reshard == "never" ? "false" : "true", kReshard);
  // The root has PyTorch's default: it stays gathered.
  r.set_groups({"model.embed_tokens", "model.layers.{*}"}, {"model.norm", "lm_head"}, reshard == "always", kShard);
  r.set_key("root_reshard_after_forward", "false", kShard);
}

void derive_outputs(Reading& r) {
  const double factor = r.number("lr_scheduler.min_lr_factor");
  const auto lr = parse_number<double>(r.word_of("--lr").value_or("0"));
  if (lr) r.set_flag("--min-lr", {fmt::to_string(factor * *lr)}, "lr_scheduler.min_lr_factor");
  if (!r.flag("checkpoint.enable")) return;
  r.set_flag_from("--save", "checkpoint.folder");
  if (r.flag("checkpoint.last_save_in_hf")) {
    return r.set_flag("--ckpt-format", {"hf"}, "checkpoint.last_save_in_hf");
  }
  r.set_flag_from("--save-interval", "checkpoint.interval");
  if (r.whole("checkpoint.keep_latest_k") > 0) r.set_flag_from("--keep-last", "checkpoint.keep_latest_k");
}

void derive_titan(Reading& r) {
  derive_sizes(r);
  derive_batch_of_tokens(r);
  derive_recompute(r);
  derive_outputs(r);
}

}  // namespace

const Table& torchtitan_table() {
  static const Table table{Dialect::kTorchtitan, kRows, derive_titan};
  return table;
}

}  // namespace loom::dialects
