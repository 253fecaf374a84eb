// MindSpeed-LLM's files for train_fsdp2.py: sections model, data, parallel, training and optimization.
//
// Source    MindSpeed-LLM, mindspeed_llm/fsdp2.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fmt/format.h>

#include "engine/core/parse_number.h"
#include "engine/core/shown_text.h"
#include "engine/dialects/native_patterns.h"
#include "engine/dialects/tool_rules.h"

namespace loom::dialects {
namespace {

constexpr std::string_view kBooleans =
    "true|True=true|TRUE=true|yes=true|Yes=true|on=true|t=true|y=true|1=true|"
    "false|False=false|FALSE=false|no=false|No=false|off=false|f=false|n=false|0=false";
constexpr std::string_view kNotTrained = "is read there and evaluated nowhere; remove it, and give --eval-iters";
constexpr std::string_view kNewTokens = "new tokens are not built: the embedding has the rows of the folder; remove it";

const Row kRows[] = {
    // --- model
    derived("model.model_name_or_path", "null", "--init-from-hf-path, --model-config")
        .needed()
        .written([](const Resolved& r) -> Said { return model_text(r); }),
    derived("model.model_id", "null", ""),
    derived("model.train_from_scratch", "false", "--model-config").written([](const Resolved& r) -> Said {
      return switch_text(r.job.model.model_config.has_value());
    }),
    unused("model.init_model_with_meta_device", "false"),
    unused("model.trust_remote_code", "false"),
    unused("model.use_fast_tokenizer", "true"),
    unused("model.cache_dir"),
    unused("model.model_revision", "main"),
    unused("model.hf_hub_token"),
    unused("model.ms_hub_token"),
    unused("model.om_hub_token"),
    unused("model.split_special_tokens", "false"),
    unused("model.tokenizer_name_or_path").note("never read there: the tokenizer is that of model_name_or_path"),
    refused("model.resize_vocab", "false", kNewTokens),
    refused("model.add_tokens", "null", kNewTokens),
    refused("model.add_special_tokens", "null", kNewTokens),
    refused("model.new_special_tokens_config", "null", kNewTokens),
    unused("model.init_special_tokens", "noise_init"),
    refused("model.quant_recipe_name", "null", "quantized training is not built; remove it"),
    unused("model.quant_apply_modules"),
    unused("model.quant_ignored_modules"),
    unused("model.quant_converters"),
    unused("model.enable_fsdp_low_precision_all_gather", "true"),
    unused("model.fsdp_low_precision_all_gather_mode", "on-demand"),

    // --- data
    flag("data.cutoff_len", "2048", "--seq-length"),
    derived("data.dataset", "null", "--data-path").written([](const Resolved& r) -> Said {
      const Said prefix = data_text(r);
      return prefix ? Said(fmt::format("{{file_name: {}}}", *prefix)) : std::nullopt;
    }),
    unused("data.dataset_dir", "./configs/fsdp2/data"),
    unused("data.template"),
    unused("data.train_on_prompt", "false"),
    unused("data.mask_history", "false"),
    unused("data.max_samples"),
    unused("data.tool_format"),
    unused("data.default_system"),
    unused("data.enable_thinking", "true"),
    unused("data.packing", "false"),
    flag("data.neat_packing", "false", "--neat-pack"),
    unused("data.preprocessing_batch_size", "1000"),
    unused("data.preprocessing_num_workers"),
    unused("data.overwrite_cache", "false"),
    unused("data.tokenized_path"),
    unused("data.append_eod", "false"),
    refused("data.eval_dataset", "null", kNotTrained),
    refused("data.val_size", "0.0", kNotTrained),
    refused("data.eval_on_each_dataset", "false", kNotTrained),
    refused("data.eval_num_beams", "null", kNotTrained),
    refused("data.streaming", "false", "data sets are not streamed here; write false"),
    refused("data.buffer_size", "16384", "is of streaming, which is not built; remove it"),
    refused("data.mix_strategy", "concat", "is --mix-strategy of shardloom preprocess here; write concat"),
    refused("data.interleave_probs", "null", "is not built: data sets take turns; remove it"),
    derived("data.split", "100,0,0", "--split").written([](const Resolved& r) -> Said {
      return r.job.data.split ? Said(value_of(r, "--split")) : std::nullopt;
    }),
    derived("data.reset_attention_mask", "false", "--reset-attention-mask").written([](const Resolved& r) -> Said {
      return switch_text(r.job.data.reset_attention_mask);
    }),
    unused("data.ignore_pad_token_for_loss", "true"),
    unused("data.create_attention_mask_in_dataloader"),
    unused("data.no_shared_storage"),
    unused("data.data_shared_file_system", "false"),
    unused("data.dataloader_type", "single"),
    derived("data.data_manager_type", "lf", "").written([](const Resolved& r) -> Said {
      return r.job.objective.stage ? Said("lf") : Said("mg");
    }),

    // --- parallel
    flat("parallel.fsdp_size", "1", "sharding_size").written([](const Resolved& r) -> Said {
      return fmt::to_string(ranks_that_shard(r));
    }),
    flat("parallel.tp_size", "1", "tensor_parallel_size"),
    derived("parallel.cp_size", "1", "ulysses_parallel_size, ring_attention_size")
        .written([](const Resolved& r) -> Said { return fmt::to_string(r.config.context_ranks()); }),
    derived("parallel.cp_type", "ulysses", "ring_rotate_method").written([](const Resolved& r) -> Said {
      if (r.config.ring_attention_size == 1) return std::nullopt;
      return r.config.ring_rotate_method == sharding::RotateMethod::kKvAllGather ? "kvallgather" : "ring";
    }),
    flat("parallel.ep_size", "1", "expert_parallel_size"),
    derived("parallel.ep_fsdp_size", "1", "reshard_local_experts").written([](const Resolved& r) -> Said {
      const int ranks = r.config.expert_parallel_size;
      return r.config.reshard_local_experts && ranks > 1 ? Said(fmt::to_string(r.world / ranks)) : std::nullopt;
    }),
    derived("parallel.ep_modules", "[model.layers.{*}.mlp.experts]", "moe_modules")
        .written([](const Resolved& r) -> Said { return key_text(r, "moe_modules"); }),
    unused("parallel.ep_fsdp_modules"),
    unused("parallel.ep_dispatcher", "eager"),
    unused("parallel.efsdp_shard_placement_fn", "shard_by_dim_1"),
    derived("parallel.tp_colwise", "[]", "colwise_parallel").written([](const Resolved& r) -> Said {
      return key_text(r, "colwise_parallel");
    }),
    derived("parallel.tp_rowwise", "[]", "rowwise_parallel").written([](const Resolved& r) -> Said {
      return key_text(r, "rowwise_parallel");
    }),
    derived("parallel.fsdp_modules", "[model.layers.{*}, model.embed_tokens, lm_head]", "sub_modules_to_wrap")
        .written([](const Resolved& r) -> Said { return wrapped_text(r); }),
    derived("parallel.ignored_modules", "null", "ignored_modules").written([](const Resolved& r) -> Said {
      return key_text(r, "ignored_modules");
    }),
    flat("parallel.reshard_after_forward", "true", "reshard_after_forward").as(kBooleans),
    flat("parallel.param_dtype", "bf16", "param_dtype").as("bf16|fp16|fp32"),
    flat("parallel.reduce_dtype", "fp32", "reduce_dtype").as("bf16|fp16|fp32"),
    flat("parallel.num_to_forward_prefetch", "1", "num_to_forward_prefetch"),
    flat("parallel.num_to_backward_prefetch", "1", "num_to_backward_prefetch"),
    derived("parallel.hook_modules", "[model.layers.{*}]", "hook_modules").written([](const Resolved& r) -> Said {
      return key_text(r, "hook_modules");
    }),
    refused("parallel.fsdp_implementation", "native",
            "the implementation there that is not PyTorch's is not built; write native"),
    refused("parallel.shard_placement_fn", "null", "is a function of a program; remove it"),
    derived("parallel.recompute", "false", "recompute_modules").written([](const Resolved& r) -> Said {
      return switch_text(!r.config.recompute_modules.empty());
    }),
    derived("parallel.recompute_modules", "[model.layers.{*}]", "recompute_modules")
        .written([](const Resolved& r) -> Said { return key_text(r, "recompute_modules"); }),
    derived("parallel.enable_chunk_batch", "false", "chunk_mbs_modules").written([](const Resolved& r) -> Said {
      return switch_text(!r.config.chunk_mbs_modules.empty());
    }),
    derived("parallel.chunk_mbs", "1", "chunk_mbs").written([](const Resolved& r) -> Said {
      return chunked(r, "chunk_mbs");
    }),
    refused("parallel.chunk_mbs_batch_dim", "0", "the batch is the first dimension here; write 0"),
    derived("parallel.chunk_mbs_modules", "[model.layers.{*}]", "chunk_mbs_modules")
        .written([](const Resolved& r) -> Said { return key_text(r, "chunk_mbs_modules"); }),
    derived("parallel.chunk_mbs_arg_indexs", "[0]", "chunk_arg_indexs").written([](const Resolved& r) -> Said {
      return chunked(r, "chunk_arg_indexs");
    }),
    derived("parallel.chunk_mbs_kwarg_names", "[position_embeddings, position_ids, attention_mask, input_ids]",
            "chunk_kwarg_names")
        .written([](const Resolved& r) -> Said {
          return r.config.chunk_mbs_modules.empty() ? std::nullopt : Said(yaml_text(r.config.chunk_kwarg_names));
        }),

    // --- training
    derived("training.output_dir", "null", "--save").needed().written([](const Resolved& r) -> Said {
      return value_of(r, "--save");
    }),
    flag("training.optimizer", "adamw", "--optimizer").as("adamw=adam|fused_adamw=adam|muon"),
    flag("training.lr", "1e-5", "--lr"),
    flag("training.weight_decay", "0.01", "--weight-decay"),
    flag("training.adam_beta1", "0.9", "--adam-beta1"),
    flag("training.adam_beta2", "0.95", "--adam-beta2"),
    flag("training.adam_epsilon", "1e-8", "--adam-eps"),
    derived("training.max_grad_norm", "1.0", "--clip-grad").written([](const Resolved& r) -> Said {
      return r.job.optimizer.clip_grad == 0 ? "1e30" : value_of(r, "--clip-grad");
    }),
    flag("training.lr_scheduler_type", "cosine", "--lr-decay-style").as("constant|linear|cosine"),
    derived("training.warmup_ratio", "0.03", "--lr-warmup-iters").written([](const Resolved& r) -> Said {
      const double steps = static_cast<double>(r.job.schedule.train_iters);
      // Between the whole steps: the ratio times the steps is cut there.
      return fmt::to_string(
          (static_cast<double>(r.job.schedule.lr_warmup_iters) + (r.job.schedule.lr_warmup_iters > 0 ? 0.5 : 0)) /
          steps);
    }),
    derived("training.min_lr", "1e-6", "--min-lr").written([](const Resolved& r) -> Said {
      return value_of(r, "--min-lr");
    }),
    derived("training.num_train_epochs", "3.0", "--train-iters"),
    derived("training.max_steps", "-1", "--train-iters").written([](const Resolved& r) -> Said {
      return value_of(r, "--train-iters");
    }),
    derived("training.gradient_accumulation_steps", "1", "--global-batch-size").written([](const Resolved& r) -> Said {
      return accumulation_text(r);
    }),
    flag("training.per_device_train_batch_size", "8", "--micro-batch-size"),
    flag("training.seed", "42", "--seed"),
    derived("training.disable_shuffling", "false", "--no-shuffle").written([](const Resolved& r) -> Said {
      return switch_text(r.job.data.no_shuffle);
    }),
    derived("training.stage", "sft", "--stage").written([](const Resolved& r) -> Said {
      return stage_text(r, {{"sft", "sft"}}, "pt");
    }),
    derived("training.calculate_per_token_loss", "false", "--loss-reduction").written([](const Resolved& r) -> Said {
      return switch_text(!r.job.objective.stage &&
                         r.job.objective.loss_reduction == objective::LossReduction::kPerToken);
    }),
    refused("training.router_aux_loss_coef", "0.0", "belongs in config.json, with output_router_logits: true; write 0"),
    listed("training.indexer_loss_coeff", "1.0"),
    listed("training.mtp_loss_scaling_factor", "0.3"),
    derived("training.save_steps", "500", "--save-interval").written([](const Resolved& r) -> Said {
      return value_of(r, "--save-interval");
    }),
    derived("training.save_total_limit", "3", "--keep-last").written([](const Resolved& r) -> Said {
      return r.job.checkpoint.keep_last ? Said(value_of(r, "--keep-last")) : std::nullopt;
    }),
    derived("training.save_epochs", "1", "--save-epochs").written([](const Resolved& r) -> Said {
      return r.job.schedule.save_epochs > 0 ? Said(value_of(r, "--save-epochs")) : std::nullopt;
    }),
    derived("training.save_only_model", "false", "--no-save-optim").written([](const Resolved& r) -> Said {
      return switch_text(r.job.checkpoint.no_save_optim);
    }),
    unused("training.save_hf_weights", "true"),
    derived("training.save_async", "false", "--async-save").written([](const Resolved& r) -> Said {
      return switch_text(r.job.checkpoint.async_save);
    }),
    flag("training.resume_from_checkpoint", "null", "--load"),
    flag("training.logging_steps", "1", "--log-interval"),
    flag("training.log_throughput", "false", "--log-throughput"),
    unused("training.log_cpu_memory", "false"),
    unused("training.dataloader_num_workers", "0"),
    unused("training.dataloader_prefetch_factor"),
    unused("training.dataloader_pin_memory", "true"),
    unused("training.dataloader_persistent_workers"),
    unused("training.dataloader_drop_last"),
    unused("training.deterministic", "true"),
    derived("training.profile", "false", "--profile").written([](const Resolved& r) -> Said {
      return switch_text(r.job.profile.enabled);
    }),
    derived("training.profile_step_start", "0", "--profile-step-start").written([](const Resolved& r) -> Said {
      return of_profile(r, "--profile-step-start");
    }),
    derived("training.profile_step_end", "-1", "--profile-step-end").written([](const Resolved& r) -> Said {
      return of_profile(r, "--profile-step-end");
    }),
    derived("training.profile_ranks", "[-1]", "--profile-ranks").written([](const Resolved& r) -> Said {
      return of_profile(r, "--profile-ranks");
    }),
    derived("training.profile_level", "level0", "--profile-level").written([](const Resolved& r) -> Said {
      return of_profile(r, "--profile-level");
    }),
    derived("training.profile_with_cpu", "false", "--profile-with-cpu").written([](const Resolved& r) -> Said {
      return of_profile(r, "--profile-with-cpu");
    }),
    derived("training.profile_with_stack", "false", "--profile-with-stack").written([](const Resolved& r) -> Said {
      return of_profile(r, "--profile-with-stack");
    }),
    derived("training.profile_with_memory", "false", "--profile-with-memory").written([](const Resolved& r) -> Said {
      return of_profile(r, "--profile-with-memory");
    }),
    derived("training.profile_record_shapes", "false", "--profile-record-shapes")
        .written([](const Resolved& r) -> Said { return of_profile(r, "--profile-record-shapes"); }),
    derived("training.profile_save_path", "./profile", "--profile-save-path").written([](const Resolved& r) -> Said {
      return of_profile(r, "--profile-save-path");
    }),
    unused("training.profile_export_type", "text"),
    unused("training.profile_data_simplification"),

    // --- optimization
    flag("optimization.use_fused_rmsnorm", "false", "--use-fused-rmsnorm"),
    flag("optimization.use_fused_rotary_pos_emb", "false", "--use-fused-rotary-pos-emb"),
    flag("optimization.use_flash_attn", "false", "--use-flash-attn"),
    flag("optimization.chunk_loss_size", "null", "--loss-chunk-size"),
    refused("optimization.fix_router", "false", "a router that takes turns is not built; write false"),
    unused("optimization.moe_grouped_gemm"),
    unused("optimization.use_sparse_flash_attn"),
    unused("optimization.use_fused_lightning_indexer"),
    unused("optimization.use_fused_lightning_indexer_loss"),
    unused("optimization.use_ascend_mhc"),
    unused("optimization.use_triton_swiglu_limit"),
    unused("optimization.use_triton_gdn"),
    unused("optimization.use_flash_gdn"),
    unused("optimization.use_triton_rmsnormgated"),
    unused("optimization.pre_tokens", "1048576"),
    unused("optimization.next_tokens", "0"),
    unused("optimization.gdn_chunk_size", "64"),
};

// --- What several keys say together

void derive_model(Reading& r) {
  const std::string folder = r.text("model.model_name_or_path");
  if (folder.empty()) return;
  if (r.flag("model.train_from_scratch")) {
    r.set_flag("--model-config", {(std::filesystem::path(folder) / "config.json").string()},
               "model.model_name_or_path");
    std::error_code none;
    if (std::filesystem::exists(std::filesystem::path(folder) / "tokenizer.json", none)) {
      r.set_flag_from("--tokenizer-name-or-path", "model.model_name_or_path");
    }
  } else {
    r.set_flag_from("--init-from-hf-path", "model.model_name_or_path");
  }
  find_model_class(r, r.text("model.model_id"), folder, "model.model_id");
}

void derive_context(Reading& r) {
  constexpr std::string_view kSize = "parallel.cp_size", kType = "parallel.cp_type";
  if (r.whole(kSize) == 1) return;
  const std::string type = r.text(kType);
  if (type != "ulysses" && type != "ring" && type != "kvallgather")
    return r.refuse(kType, "use ulysses, ring or kvallgather");
  r.set_key(type == "ulysses" ? "ulysses_parallel_size" : "ring_attention_size", r.text(kSize), kSize);
  if (type == "kvallgather") r.set_key("ring_rotate_method", "kvallgather", kType);
}

void derive_parallel(Reading& r) {
  const std::int64_t size = r.whole("parallel.fsdp_size");
  if (r.knows_world() && size > 0 && r.world() % size != 0) {
    r.refuse("parallel.fsdp_size", fmt::format("{} ranks are no multiple of it; write a divisor", r.world()));
  }
  if (size == 1 && r.world() > 1 && !r.is_given("parallel.fsdp_size")) {
    r.note(fmt::format(
        "parallel.fsdp_size is not given, and 1 there: nothing is sharded over {} ranks; write fsdp_size: {}",
        r.world(), r.world()));
  }
  if (r.texts("parallel.fsdp_modules").empty()) r.refuse("parallel.fsdp_modules", "name at least one module");
  set_patterns(r, "sub_modules_to_wrap", "parallel.fsdp_modules");
  set_patterns(r, "ignored_modules", "parallel.ignored_modules");
  derive_context(r);
  if (r.whole("parallel.tp_size") > 1) {
    set_patterns(r, "colwise_parallel", "parallel.tp_colwise");
    set_patterns(r, "rowwise_parallel", "parallel.tp_rowwise");
  }
  derive_experts(r, "parallel.ep_size", "parallel.ep_fsdp_size", "parallel.ep_modules");
  derive_hook_modules(r, "parallel.hook_modules", "parallel.fsdp_modules");
  derive_prefetch_order(r, "parallel.fsdp_modules", "parallel.num_to_forward_prefetch",
                        "parallel.num_to_backward_prefetch");
  if (r.flag("parallel.recompute")) {
    set_patterns(r, "recompute_modules", "parallel.recompute_modules");
    r.set_key("use_reentrant", "false", "parallel.recompute");
  }
  if (!r.flag("parallel.enable_chunk_batch")) return;
  set_patterns(r, "chunk_mbs_modules", "parallel.chunk_mbs_modules");
  r.set_key("chunk_mbs", r.text("parallel.chunk_mbs"), "parallel.chunk_mbs");
  if (const config::Value* places = r.value("parallel.chunk_mbs_arg_indexs")) r.set_key("chunk_arg_indexs", *places);
  if (const config::Value* names = r.value("parallel.chunk_mbs_kwarg_names")) r.set_key("chunk_kwarg_names", *names);
}

// The smaller of max_steps and the steps of the epochs: the loop there ends after these in any case.
void derive_steps(Reading& r) {
  derive_batch(r, "training.per_device_train_batch_size", "training.gradient_accumulation_steps",
               product({r.whole("parallel.cp_size"), r.whole("parallel.tp_size")}));
  const std::int64_t most = r.whole("training.max_steps");
  const double epochs = r.number("training.num_train_epochs");
  const auto samples = samples_of(r);
  const auto batch = parse_number<std::int64_t>(r.word_of("--global-batch-size").value_or("0")).value_or(0);
  if (!samples || batch == 0) {
    if (most > 0) {
      r.set_flag_from("--train-iters", "training.max_steps");
      return r.note(
          fmt::format("training.max_steps is {}: there the loop ends earlier where {} epochs have fewer steps", most,
                      std::floor(epochs)));
    }
    return derive_epochs(r, "training.num_train_epochs", std::floor(epochs));
  }
  const std::int64_t of_epochs = static_cast<std::int64_t>(epochs) * ((*samples + batch - 1) / batch);
  const std::int64_t steps = most > 0 ? std::min(most, of_epochs) : of_epochs;
  if (steps < 1) return r.refuse("training.num_train_epochs", "no step is left; write at least 1");
  r.set_flag("--train-iters", {fmt::to_string(steps)},
             most > 0 && most <= of_epochs ? "training.max_steps" : "training.num_train_epochs");
  r.note(fmt::format("steps: {}, the smaller of training.max_steps {} and {} epochs of {} samples ({} steps)", steps,
                     most, std::floor(epochs), *samples, of_epochs));
}

void derive_schedule(Reading& r) {
  derive_steps(r);
  const double ratio = r.number("training.warmup_ratio");
  const auto steps = parse_number<std::int64_t>(r.word_of("--train-iters").value_or("0")).value_or(0);
  if (ratio < 0 || ratio >= 1) r.refuse("training.warmup_ratio", "use a number from 0 to below 1");
  const auto warmup = static_cast<std::int64_t>(static_cast<double>(steps) * std::clamp(ratio, 0.0, 1.0));
  if (warmup > 0) r.set_flag("--lr-warmup-iters", {fmt::to_string(warmup)}, "training.warmup_ratio");
  const std::string style = r.text("training.lr_scheduler_type");
  if (style == "linear" && r.number("training.min_lr") > 0) {
    if (r.is_given("training.min_lr")) {
      r.refuse("training.min_lr", "linear decays to 0 there, whatever min_lr is; write 0");
    } else {
      r.set_flag("--min-lr", {"0"}, "training.lr_scheduler_type");
    }
  } else if (style != "constant") {
    r.set_flag_from("--min-lr", "training.min_lr");
  }
  if (r.number("training.max_grad_norm") == 0) {
    r.refuse("training.max_grad_norm", "there it multiplies all gradients by 0; for no clipping write 1e30");
  } else {
    r.set_flag_from("--clip-grad", "training.max_grad_norm");
  }
}

void derive_data(Reading& r) {
  const std::string stage = r.text("training.stage"), manager = r.text("data.data_manager_type");
  if (stage != "sft" && stage != "pt") {
    r.refuse("training.stage", "use sft or pt");
  } else if ((stage == "pt") != (manager == "mg")) {
    r.refuse("data.data_manager_type", fmt::format("stage {} wants {}", stage, stage == "pt" ? "mg" : "lf"));
  }
  if (stage == "sft") {
    r.set_flag("--stage", {"sft"}, "training.stage");
    if (r.flag("training.disable_shuffling")) r.set_flag("--no-shuffle", {}, "training.disable_shuffling");
  } else {
    if (r.is_given("data.split") || samples_of(r)) r.set_flag_from("--split", "data.split");
    if (r.flag("data.reset_attention_mask")) r.set_flag("--reset-attention-mask", {}, "data.reset_attention_mask");
  }
  r.set_flag("--eval-iters", {"0"}, "data.eval_dataset");
  // Its sft divides by the scored tokens of the whole step, whatever calculate_per_token_loss is.
  const bool per_token = stage == "sft" || r.flag("training.calculate_per_token_loss");
  r.set_flag("--loss-reduction", {per_token ? "per_token" : "micro_batch"}, "training.calculate_per_token_loss");
  const config::Value* dataset = r.value("data.dataset");
  if (dataset == nullptr) return;
  derive_dataset(r, dataset->is_mapping() ? "data.dataset.file_name" : "data.dataset",
                 dataset->is_mapping() ? "data.dataset.folder" : "data.dataset_dir", "data.template");
}

void derive_outputs(Reading& r) {
  if (r.flag("training.profile")) {
    r.set_flag("--profile", {}, "training.profile");
    constexpr std::string_view kNames[] = {"step_start",  "level",         "with_cpu", "with_stack",
                                           "with_memory", "record_shapes", "save_path"};
    for (const std::string_view name : kNames) {
      std::string flag = fmt::format("--profile-{}", name);
      std::ranges::replace(flag, '_', '-');
      r.set_flag_from(flag, fmt::format("training.profile_{}", name));
    }
    if (r.whole("training.profile_step_end") > 0) r.set_flag_from("--profile-step-end", "training.profile_step_end");
    if (r.texts("training.profile_ranks") != job::Texts{"-1"})
      r.set_flag_from("--profile-ranks", "training.profile_ranks");
  }
  if (!r.is_given("training.output_dir")) return;
  r.set_flag_from("--save", "training.output_dir");
  if (r.flag("training.save_only_model")) r.set_flag("--no-save-optim", {}, "training.save_only_model");
  if (r.flag("training.save_async")) r.set_flag("--async-save", {}, "training.save_async");
  if (r.whole("training.save_steps") == 0) return;
  r.set_flag("--ckpt-format", {"torch_dcp"}, "training.save_steps");
  r.set_flag_from("--save-interval", "training.save_steps");
  r.set_flag_from("--keep-last", "training.save_total_limit");
  if (samples_of(r) && r.whole("training.save_epochs") > 0) r.set_flag_from("--save-epochs", "training.save_epochs");
}

void derive_llm(Reading& r) {
  derive_model(r);
  derive_data(r);
  derive_parallel(r);
  derive_schedule(r);
  derive_outputs(r);
}

}  // namespace

const Table& llm_table() {
  static const Table table{Dialect::kLlm, kRows, derive_llm};
  return table;
}

}  // namespace loom::dialects
