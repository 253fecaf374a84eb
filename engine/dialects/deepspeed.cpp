// DeepSpeed's JSON as the FSDP2 file that comes nearest: not the same arithmetic, since ZeRO has flat buckets.
//
// Source    DeepSpeed, runtime/config.py and runtime/zero/config.py.
#include "engine/dialects/deepspeed.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>

#include "engine/core/parse_number.h"
#include "engine/dialects/tool_rules.h"

namespace loom::dialects {
namespace {

constexpr std::string_view kNotBuilt = "is not built; remove it";
constexpr std::string_view kOwnPlan =
    "names weights by regular expressions, which are not read; remove it: the model has a plan, and "
    "colwise_parallel and rowwise_parallel of fsdp2_config.yaml replace it";

const Row kRows[] = {
    derived("zero_optimization.stage", "0",
            "sharding_size, reshard_after_forward, reshard_after_backward, sync_each_batch")
        .written([](const Resolved& r) -> Said {
          if (r.config.sharding_size == 1) return "0";
          const Said reshard = boolean_text(r.config.reshard_after_forward.text());
          if (reshard != "false") return "3";
          return r.config.sync_each_batch ? "2" : "1";
        }),
    derived("zero_optimization.offload_param.device", "none", "offload_to_cpu"),
    derived("zero_optimization.offload_param.pin_memory", "false", "pin_memory"),
    unused("zero_optimization.offload_param.*"),
    derived("zero_optimization.offload_optimizer.device", "none", "--optimizer"),
    unused("zero_optimization.offload_optimizer.*"),
    derived("zero_optimization.zero_hpz_partition_size", "1", "reshard_after_forward"),
    derived("zero_optimization.mics_shard_size", "-1", "sharding_size"),
    refused("zero_optimization.zero_quantized_weights", "false", kNotBuilt),
    refused("zero_optimization.zero_quantized_gradients", "false", kNotBuilt),
    refused("zero_optimization.zero_quantized_nontrainable_weights", "false", kNotBuilt),
    unused("zero_optimization.*"),
    derived("bf16.enabled", "false", "param_dtype, reduce_dtype"),
    derived("bf16.bf16_master_weights_and_grads", "false", "--params-dtype"),
    derived("bf16.bf16_optimizer_states", "false", "--params-dtype"),
    unused("bf16.*"),
    derived("fp16.enabled", "false", "param_dtype, reduce_dtype, --fp16"),
    derived("fp16.loss_scale", "0", "--loss-scale"),
    derived("fp16.initial_scale_power", "16", "--initial-loss-scale"),
    derived("fp16.loss_scale_window", "1000", "--loss-scale-window"),
    derived("fp16.hysteresis", "2", "--hysteresis"),
    derived("fp16.min_loss_scale", "1", "--min-loss-scale"),
    unused("fp16.*"),
    derived("train_batch_size", "null", "--global-batch-size"),
    derived("train_micro_batch_size_per_gpu", "null", "--micro-batch-size"),
    derived("gradient_accumulation_steps", "null", "--global-batch-size"),
    derived("gradient_clipping", "0", "--clip-grad"),
    derived("optimizer.type", "null", "--optimizer"),
    derived("optimizer.params.lr", "null", "--lr"),
    derived("optimizer.params.betas", "null", "--adam-beta1, --adam-beta2"),
    derived("optimizer.params.eps", "null", "--adam-eps"),
    derived("optimizer.params.weight_decay", "null", "--weight-decay"),
    unused("optimizer.params.torch_adam"),
    refused("optimizer.params.adam_w_mode", "true", "weight decay in the gradient is not built; write true"),
    derived("scheduler.type", "null", "--lr-decay-style"),
    derived("scheduler.params.warmup_min_lr", "0", "--lr-warmup-init"),
    derived("scheduler.params.warmup_max_lr", "null", "--lr"),
    derived("scheduler.params.warmup_num_steps", "null", "--lr-warmup-iters"),
    derived("scheduler.params.total_num_steps", "null", "--lr-decay-iters"),
    unused("scheduler.params.warmup_type"),
    unused("zero_allow_untested_optimizer"),
    unused("steps_per_print"),
    unused("wall_clock_breakdown"),
    unused("comms_config"),
    unused("comms_logger"),
    unused("monitor_config"),
    unused("tensorboard"),
    unused("wandb"),
    unused("csv_monitor"),
    unused("zero_force_ds_cpu_optimizer"),
    unused("prescale_gradients"),
    unused("communication_data_type"),
    refused("activation_checkpointing", "null", "steers a program's own calls; write recompute_modules").also("{}"),
    derived("tensor_parallel.autotp_size", "0", "tensor_parallel_size").written([](const Resolved& r) -> Said {
      return r.config.tensor_parallel_size == 1 ? Said() : Said(fmt::to_string(r.config.tensor_parallel_size));
    }),
    refused("tensor_parallel.tp.tp_size", "1", "is not read in training; write tensor_parallel.autotp_size"),
    refused("tensor_parallel.partition_config", "null", kOwnPlan).also("{}"),
    refused("tensor_parallel.injection_policy_tuple", "null", kOwnPlan),
    unused("tensor_parallel.*"),
    refused("pipeline", "null", kNotBuilt),
    refused("sparse_attention", "null", kNotBuilt),
    refused("compression_training", "null", kNotBuilt),
};

// Whether the tool's "auto" stands there: the flags of the command line say it.
bool is_auto(Reading& r, std::string_view key, std::string_view flag) {
  const config::Value* value = r.given(key);
  if (value == nullptr || !value->is_scalar() || value->scalar() != "auto") return false;
  if (!flag.empty() && !r.context().flag(flag)) r.miss(key, fmt::format("it is auto; give {}", flag));
  return true;
}

void set_number(Reading& r, std::string_view flag, std::string_view key) {
  if (r.is_given(key) && !is_auto(r, key, flag)) r.set_flag_from(flag, key);
}

void derive_stage(Reading& r, std::string_view at, std::int64_t stage) {
  if (stage < 0 || stage > 3) return r.refuse(at, "use 0, 1, 2 or 3");
  r.set_key("sharding_size", stage == 0 ? "1" : "auto", at);
  r.set_key("reshard_after_forward", stage == 3 ? "true" : "false", at);
  if (stage == 1 || stage == 2) r.set_key("reshard_after_backward", "false", at);
  if (stage == 1) r.set_key("sync_each_batch", "false", at);
  r.note(fmt::format("{} {}: read as the FSDP2 file that comes nearest; ZeRO's flat buckets add in another order", at,
                     stage));
}

void derive_offload(Reading& r, std::string_view parameters, std::string_view optimizer, std::int64_t stage) {
  const std::string of_parameters = r.text(parameters), of_optimizer = r.text(optimizer);
  if (of_parameters == "nvme") return r.refuse(parameters, "disks are not used; write cpu or none");
  if (of_optimizer == "nvme") return r.refuse(optimizer, "disks are not used; write cpu or none");
  if (of_parameters == "cpu" && stage == 3) {
    r.set_key("offload_to_cpu", "true", parameters);
  } else if (of_optimizer == "cpu") {
    r.set_flag("--optimizer", {"adamw_swap"}, optimizer);
  }
}

// `tensor`: how many ranks share matrices, and read the same samples.
void derive_batch_sizes(Reading& r, std::int64_t tensor) {
  if (r.is_given("train_micro_batch_size_per_gpu"))
    set_number(r, "--micro-batch-size", "train_micro_batch_size_per_gpu");
  const bool has_steps = r.is_given("gradient_accumulation_steps") && !is_auto(r, "gradient_accumulation_steps", "");
  const bool has_total = r.is_given("train_batch_size") && !is_auto(r, "train_batch_size", "");
  const std::int64_t data_ranks = std::max<std::int64_t>(1, r.world() / tensor);
  const auto micro = parse_number<std::int64_t>(r.word_of("--micro-batch-size").value_or("0")).value_or(0);
  if (has_total) {
    const std::int64_t total = r.whole("train_batch_size"),
                       steps = has_steps ? r.whole("gradient_accumulation_steps") : 1;
    if (micro == 0 && steps > 0 && total % (steps * data_ranks) == 0) {
      r.set_flag("--micro-batch-size", {fmt::to_string(total / (steps * data_ranks))}, "train_batch_size");
    } else if (has_steps && micro * steps * data_ranks != total) {
      return r.refuse("train_batch_size", fmt::format("micro-batch {} x {} steps x {} ranks is {}; make them equal",
                                                      micro, steps, data_ranks, micro * steps * data_ranks));
    }
    return r.set_flag_from("--global-batch-size", "train_batch_size");
  }
  if (has_steps) derive_batch(r, "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", tensor);
}

// Ranks that share matrices, at least 1.
std::int64_t derive_tensor(Reading& r, std::int64_t stage) {
  constexpr std::string_view kSize = "tensor_parallel.autotp_size";
  const std::int64_t ranks = r.whole(kSize);
  if (ranks <= 1) return 1;
  if (stage == 3) {
    r.refuse(kSize, "its tool shares matrices beside zero_optimization.stage 0 to 2; write one of these, or 1");
  } else if (r.knows_world() && r.world() % ranks != 0) {
    r.refuse(kSize, fmt::format("it does not divide the {} ranks; use a divisor of {}", r.world(), r.world()));
  } else {
    r.set_key("tensor_parallel_size", fmt::to_string(ranks), kSize);
    return ranks;
  }
  return 1;
}

void derive_optimizer(Reading& r) {
  const std::string type = r.text("optimizer.type");
  if (!type.empty() && type != "Adam" && type != "AdamW") r.refuse("optimizer.type", "use Adam or AdamW");
  set_number(r, "--lr", "optimizer.params.lr");
  set_number(r, "--adam-eps", "optimizer.params.eps");
  set_number(r, "--weight-decay", "optimizer.params.weight_decay");
  const job::Texts betas = r.texts("optimizer.params.betas");
  if (betas.size() == 2) {
    r.set_flag("--adam-beta1", {betas[0]}, "optimizer.params.betas");
    r.set_flag("--adam-beta2", {betas[1]}, "optimizer.params.betas");
  }
  const std::string schedule = r.text("scheduler.type");
  if (schedule.empty()) return;
  if (schedule != "WarmupLR" && schedule != "WarmupDecayLR")
    return r.refuse("scheduler.type", "use WarmupLR or WarmupDecayLR");
  r.set_flag("--lr-decay-style", {schedule == "WarmupLR" ? "constant" : "linear"}, "scheduler.type");
  set_number(r, "--lr", "scheduler.params.warmup_max_lr");
  set_number(r, "--lr-warmup-iters", "scheduler.params.warmup_num_steps");
  constexpr std::string_view kLeast = "scheduler.params.warmup_min_lr";
  // transformers fills in 0.
  if (!is_auto(r, kLeast, "") && r.number(kLeast) != 0) set_number(r, "--lr-warmup-init", kLeast);
  set_number(r, "--lr-decay-iters", "scheduler.params.total_num_steps");
}

// bf16 without a copy in fp32: of parameters, gradients and moments, or of none of them.
void derive_stored_type(Reading& r) {
  constexpr std::string_view kMasters = "bf16.bf16_master_weights_and_grads", kStates = "bf16.bf16_optimizer_states";
  const bool masters = r.flag(kMasters), states = r.flag(kStates);
  if (masters && states) return r.set_flag("--params-dtype", {"bf16"}, kMasters);
  if (masters) r.refuse(kMasters, "moments have the type of their parameter here; add bf16_optimizer_states: true");
  if (states)
    r.refuse(kStates, "moments have the type of their parameter here; add bf16_master_weights_and_grads: true");
}

void derive_types(Reading& r) {
  for (const std::string_view type : {"bf16", "fp16"}) {
    const std::string at = fmt::format("{}.enabled", type);
    const bool is_flag = is_auto(r, at, "");
    if (is_flag ? !r.context().flag(fmt::format("--{}", type)) : !r.flag(at)) continue;
    r.set_key("param_dtype", std::string(type), at);
    r.set_key("reduce_dtype", std::string(type), at);
    if (type == "bf16") {
      derive_stored_type(r);
      continue;
    }
    r.set_flag("--fp16", {}, at);
    if (r.number("fp16.loss_scale") != 0) {
      r.set_flag_from("--loss-scale", "fp16.loss_scale");
      continue;
    }
    const double scale = std::exp2(std::min(64.0, r.number("fp16.initial_scale_power")));
    r.set_flag("--initial-loss-scale", {fmt::to_string(scale)}, "fp16.initial_scale_power");
    r.set_flag_from("--loss-scale-window", "fp16.loss_scale_window");
    r.set_flag_from("--hysteresis", "fp16.hysteresis");
    r.set_flag_from("--min-loss-scale", "fp16.min_loss_scale");
  }
}

void derive_deepspeed(Reading& r) {
  const std::int64_t stage = r.whole("zero_optimization.stage");
  derive_stage(r, "zero_optimization.stage", stage);
  derive_offload(r, "zero_optimization.offload_param.device", "zero_optimization.offload_optimizer.device", stage);
  if (r.has_key("offload_to_cpu") && r.flag("zero_optimization.offload_param.pin_memory")) {
    r.set_key("pin_memory", "true", "zero_optimization.offload_param.pin_memory");
  }
  const std::int64_t secondary = r.whole("zero_optimization.zero_hpz_partition_size");
  if (secondary > 1)
    r.set_key("reshard_after_forward", fmt::to_string(secondary), "zero_optimization.zero_hpz_partition_size");
  const std::int64_t group = r.whole("zero_optimization.mics_shard_size");
  if (group > 0) r.set_key("sharding_size", fmt::to_string(group), "zero_optimization.mics_shard_size");
  derive_types(r);
  derive_batch_sizes(r, derive_tensor(r, stage));
  derive_optimizer(r);
  if (!is_auto(r, "gradient_clipping", "--clip-grad")) r.set_flag_from("--clip-grad", "gradient_clipping");
  const ModelTree* model = r.model();
  if (stage == 0) return;
  if (model == nullptr) {
    return r.miss("zero_optimization.stage",
                  "groups follow from the model; give --model-config FILE or --init-from-hf-path DIR");
  }
  job::Texts groups = {model->layer_class()};
  if (!model->embedding().empty()) groups.push_back(model->embedding());
  if (!groups.front().empty()) r.set_key("sub_modules_to_wrap", groups, "zero_optimization.stage");
}

}  // namespace

void derive_deepspeed_block(Reading& r) {
  const std::int64_t stage = r.whole("deepspeed_config.zero_stage");
  if (r.is_given("deepspeed_config.deepspeed_config_file")) {
    return r.refuse("deepspeed_config.deepspeed_config_file", "give that file itself in the place of this one");
  }
  derive_stage(r, "deepspeed_config.zero_stage", stage);
  derive_offload(r, "deepspeed_config.offload_param_device", "deepspeed_config.offload_optimizer_device", stage);
  const auto micro = parse_number<std::int64_t>(r.word_of("--micro-batch-size").value_or("1")).value_or(1);
  const std::int64_t steps = r.whole("deepspeed_config.gradient_accumulation_steps");
  if (steps > 1)
    r.set_flag("--global-batch-size", {fmt::to_string(micro * steps * r.world())},
               "deepspeed_config.gradient_accumulation_steps");
  const ModelTree* model = r.model();
  if (stage == 0 || model == nullptr || model->layer_class().empty()) return;
  job::Texts groups = {model->layer_class()};
  if (!model->embedding().empty()) groups.push_back(model->embedding());
  r.set_key("sub_modules_to_wrap", groups, "deepspeed_config.zero_stage");
}

const Table& deepspeed_table() {
  static const Table table{Dialect::kDeepSpeed, kRows, derive_deepspeed};
  return table;
}

}  // namespace loom::dialects
