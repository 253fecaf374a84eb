// MindSpeed-MM's own files: sections parallel, model, data, features, training and tools.
//
// Source    MindSpeed-MM, mindspeed_mm/fsdp/params and mindspeed_mm/configs.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fmt/format.h>

#include "engine/dialects/native_patterns.h"
#include "engine/dialects/resolved.h"
#include "engine/dialects/tool_rules.h"
#include "sharding/config/fsdp2_keys.h"

namespace loom::dialects {
namespace {

constexpr std::string_view kInFeatures = "is a key of features, and is read nowhere else; write it there";

// Of the models that are built.
constexpr const char* kNormsBetweenBlocks =
    "[\"model.layers.{*}.input_layernorm\", \"model.layers.{*}.post_attention_layernorm\", model.norm]";

// The last part of a list is a copy in another section that its tool does not read.
const Row kRows[] = {
    // --- parallel
    flat("parallel.fully_shard_parallel_size", "auto", "sharding_size"),
    derived("parallel.data_parallel_size", "null", ""),
    flat("parallel.tensor_parallel_size", "1", "tensor_parallel_size"),
    flat("parallel.ring_attention_size", "1", "ring_attention_size"),
    flat("parallel.ulysses_parallel_size", "1", "ulysses_parallel_size"),
    refused("parallel.context_parallel_size", "1",
            "its tool does not read it; write 1, and ulysses_parallel_size or ring_attention_size")
        .also("null"),
    flat("parallel.expert_parallel_size", "1", "expert_parallel_size"),
    derived("parallel.expert_fully_shard_parallel_size", "null", "reshard_local_experts")
        .written([](const Resolved& r) -> Said { return r.config.reshard_local_experts ? Said() : Said("1"); }),
    derived("parallel.ep_plan.apply_modules", "[]", "moe_modules").written([](const Resolved& r) -> Said {
      return key_text(r, "moe_modules");
    }),
    unused("parallel.ep_plan.use_npu_fused_ops", "true"),
    derived("parallel.ep_plan.dispatcher", "alltoall", "moe_token_dispatcher_type")
        .written([](const Resolved& r) -> Said { return key_text(r, "moe_token_dispatcher_type"); }),
    unused("parallel.ep_plan.apply_efsdp_modules", "[]"),
    derived("parallel.tp_plan.colwise_parallel", "[]", "colwise_parallel").written([](const Resolved& r) -> Said {
      return key_text(r, "colwise_parallel");
    }),
    derived("parallel.tp_plan.rowwise_parallel", "[]", "rowwise_parallel").written([](const Resolved& r) -> Said {
      return key_text(r, "rowwise_parallel");
    }),
    derived("parallel.tp_plan.sequence_parallel", "[]", "sequence_parallel").written([](const Resolved& r) -> Said {
      return r.config.sequence_parallel ? Said(kNormsBetweenBlocks) : Said();
    }),
    derived("parallel.recompute", "false", ""),
    unused("parallel.recompute_plan.apply_modules", "[]"),
    unused("parallel.recompute_plan.use_reentrant", "false"),
    refused("parallel.pregather", "false", "is a key of parallel.fsdp_plan, and is not read here; write false"),
    derived("parallel.fsdp_plan.apply_modules", "[]", "sub_modules_to_wrap").written([](const Resolved& r) -> Said {
      return wrapped_text(r);
    }),
    derived("parallel.fsdp_plan.ignored_modules", "[]", "ignored_modules").written([](const Resolved& r) -> Said {
      return key_text(r, "ignored_modules");
    }),
    flat("parallel.fsdp_plan.param_dtype", "null", "param_dtype"),
    flat("parallel.fsdp_plan.reduce_dtype", "null", "reduce_dtype"),
    flat("parallel.fsdp_plan.output_dtype", "null", "output_dtype"),
    flat("parallel.fsdp_plan.cast_forward_inputs", "true", "cast_forward_inputs"),
    derived("parallel.fsdp_plan.reshard_after_forward", "true", "reshard_after_forward")
        .written([](const Resolved& r) -> Said { return boolean_text(key_text(r, "reshard_after_forward")); }),
    flat("parallel.fsdp_plan.num_to_forward_prefetch", "0", "num_to_forward_prefetch"),
    flat("parallel.fsdp_plan.num_to_backward_prefetch", "0", "num_to_backward_prefetch"),
    derived("parallel.fsdp_plan.cpu_offload", "false", "offload_to_cpu, pin_memory")
        .written([](const Resolved& r) -> Said { return key_text(r, "offload_to_cpu"); }),
    derived("parallel.fsdp_plan.hook_modules", "null", "hook_modules").written([](const Resolved& r) -> Said {
      return key_text(r, "hook_modules");
    }),
    flat("parallel.fsdp_plan.pregather", "false", "pregather"),

    // --- model
    derived("model.model_name_or_path", "null", "--init-from-hf-path, --model-config")
        .written([](const Resolved& r) -> Said { return model_text(r); }),
    derived("model.model_id", "null", ""),
    unused("model.trust_remote_code", "false"),
    derived("model.attn_implementation", "flash_attention_2", "--use-flash-attn, --kernels")
        .written([](const Resolved& r) -> Said { return attention_text(r); }),
    derived("model.freeze", "[]", "freeze").written([](const Resolved& r) -> Said { return key_text(r, "freeze"); }),
    refused("model.mtp_num_layers", "0", "layers that predict several tokens are not built; write 0"),
    unused("model.mtp_loss_scaling_factor", "0.1"),
    refused("model.recompute", "false", kInFeatures),
    refused("model.enable_chunk_loss", "false", kInFeatures),
    refused("model.enable_activation_offload", "false", kInFeatures),
    refused("model.enable_chunk_mbs", "false", kInFeatures),
    listed("model.recompute_plan"),
    listed("model.chunkloss_plan"),
    listed("model.activation_offload_plan"),
    listed("model.chunkmbs_plan"),
    listed("model.loss_cfg"),
    listed("model.gdn_implementation"),
    listed("model.causal_conv1d_implementation"),
    listed("model.kda_implementation"),
    listed("model.use_grouped_expert_matmul"),
    derived("model.skip_gdn_recompute", "false", ""),
    derived("model.skip_flash_attn_recompute", "false", "recompute_keep").written([](const Resolved& r) -> Said {
      return switch_text(r.config.recompute_keep == sharding::RecomputeKeep::kAttention);
    }),
    derived("model.skip_kda_recompute", "false", ""),
    derived("model.*", "null", ""),

    // --- data
    derived("data.dataset_param.dataset_type", "huggingface", "--mm-data").needed().note("multimodal"),
    derived("data.dataset_param.attr", "null", "--mm-data").note("where it names images or videos"),
    flag("data.dataset_param.basic_parameters.cutoff_len", "1024", "--seq-length"),
    derived("data.dataset_param.basic_parameters.stage", "sft", "--stage").written([](const Resolved& r) -> Said {
      return stage_text(r, {{"sft", "sft"}, {"orm", "rm"}}, "pretrain");
    }),
    flag("data.dataset_param.basic_parameters.neat_packing", "false", "--neat-pack"),
    refused("data.dataset_param.basic_parameters.streaming", "false", "data sets are not streamed here; write false"),
    derived("data.dataset_param.basic_parameters.dataset", "null", "--data-path")
        .written([](const Resolved& r) -> Said { return data_text(r); }),
    unused("data.dataset_param.basic_parameters.*"),
    derived("data.dataset_param.preprocess_parameters.model_name_or_path", "null", "--tokenizer-name-or-path")
        .written([](const Resolved& r) -> Said {
          return r.job.data.tokenizer_name_or_path ? Said(value_of(r, "--tokenizer-name-or-path")) : std::nullopt;
        }),
    listed("data.dataset_param.preprocess_parameters.*"),
    listed("data.dataset_param.*"),
    listed("data.val_dataset_param"),
    unused("data.dataloader_param.dataloader_mode").needed(),
    unused("data.dataloader_param.sampler_type").needed(),
    derived("data.dataloader_param.shuffle", "true", "--no-shuffle").needed().written([](const Resolved& r) -> Said {
      return r.job.data.no_shuffle ? Said("false") : std::nullopt;
    }),
    unused("data.dataloader_param.drop_last").needed(),
    unused("data.dataloader_param.pin_memory").needed(),
    unused("data.dataloader_param.num_workers", "2"),
    unused("data.dataloader_param.enable_preload", "false"),
    unused("data.dataloader_param.prefetch_factor"),
    unused("data.dataloader_param.collate_param.collator_id"),
    unused("data.dataloader_param.collate_param.model_name"),
    unused("data.dataloader_param.collate_param.ignore_pad_token_for_loss", "false"),
    derived("data.dataloader_param.collate_param.pad_to_multiple_of", "8", "--pad-to-multiple-of")
        .written([](const Resolved& r) -> Said {
          return r.job.objective.stage ? Said(value_of(r, "--pad-to-multiple-of")) : std::nullopt;
        }),

    // --- features
    derived("features.recompute", "false", "recompute_modules").written([](const Resolved& r) -> Said {
      return switch_text(!r.config.recompute_modules.empty());
    }),
    derived("features.recompute_plan.apply_modules", "[]", "recompute_modules").written([](const Resolved& r) -> Said {
      return key_text(r, "recompute_modules");
    }),
    derived("features.recompute_plan.use_reentrant", "false", "use_reentrant").written([](const Resolved& r) -> Said {
      return r.config.recompute_modules.empty() ? std::nullopt : key_text(r, "use_reentrant");
    }),
    derived("features.loss_cfg.loss_type", "raw", "--loss-reduction").written([](const Resolved& r) -> Said {
      return loss_type_text(r);
    }),
    refused("features.loss_cfg.router_aux_loss_coef", "0.0",
            "belongs in config.json, with output_router_logits: true; write 0"),
    unused("features.loss_cfg.router_aux_loss_offload", "false"),
    derived("features.enable_chunk_loss", "false", "--loss-chunk-size, --total-chunk-size")
        .written([](const Resolved& r) -> Said {
          return switch_text(r.job.objective.loss_chunk_size > 0 || r.job.objective.total_chunk_size > 0);
        }),
    derived("features.enable_dynamic_chunk_loss", "false", "--total-chunk-size").written([](const Resolved& r) -> Said {
      return switch_text(r.job.objective.total_chunk_size > 0);
    }),
    unused("features.chunkloss_plan.apply_module", "lm_head"),
    derived("features.chunkloss_plan.chunk_size", "1024", "--loss-chunk-size").written([](const Resolved& r) -> Said {
      return r.job.objective.loss_chunk_size > 0 ? Said(value_of(r, "--loss-chunk-size")) : std::nullopt;
    }),
    derived("features.chunkloss_plan.total_chunk_size", "4096", "--total-chunk-size")
        .written([](const Resolved& r) -> Said {
          return r.job.objective.total_chunk_size > 0 ? Said(value_of(r, "--total-chunk-size")) : std::nullopt;
        }),
    derived("features.enable_activation_offload", "false", "activation_offload_modules")
        .written([](const Resolved& r) -> Said { return switch_text(!r.config.activation_offload_modules.empty()); }),
    derived("features.activation_offload_plan.apply_modules", "null", "activation_offload_modules")
        .written([](const Resolved& r) -> Said { return key_text(r, "activation_offload_modules"); }),
    derived("features.enable_chunk_mbs", "false", "chunk_mbs_modules").written([](const Resolved& r) -> Said {
      return switch_text(!r.config.chunk_mbs_modules.empty());
    }),
    derived("features.chunkmbs_plan.apply_modules", "null", "chunk_mbs_modules").written([](const Resolved& r) -> Said {
      return key_text(r, "chunk_mbs_modules");
    }),
    derived("features.chunkmbs_plan.chunk_mbs", "1", "chunk_mbs").written([](const Resolved& r) -> Said {
      return chunked(r, "chunk_mbs");
    }),
    refused("features.chunkmbs_plan.batch_dim", "0", "the batch is the first dimension here; write 0"),
    derived("features.chunkmbs_plan.chunk_arg_indexs", "[0]", "chunk_arg_indexs")
        .written([](const Resolved& r) -> Said { return chunked(r, "chunk_arg_indexs"); }),
    derived("features.chunkmbs_plan.chunk_kwarg_names", "[]", "chunk_kwarg_names")
        .written([](const Resolved& r) -> Said { return chunked(r, "chunk_kwarg_names"); }),
    refused("features.enable_ep_balance", "false", "balances expert parallelism, which is not built; write false"),
    unused("features.ep_balance_plan.max_dup_experts_num", "2"),
    refused("features.skip_moe_pad_tokens", "false", "is not built: experts compute padding too; write false"),

    // --- training
    flag("training.lr", "5e-5", "--lr"),
    flag("training.lr_min", "0", "--min-lr"),
    derived("training.lr_start", "0", "--lr-warmup-init").written([](const Resolved& r) -> Said {
      return value_of(r, "--lr-warmup-init");
    }),
    derived("training.lr_warmup_ratio", "0", "--lr-warmup-fraction").written([](const Resolved& r) -> Said {
      return r.job.schedule.lr_warmup_fraction ? Said(value_of(r, "--lr-warmup-fraction")) : std::nullopt;
    }),
    flag("training.lr_decay_style", "constant", "--lr-decay-style").as("constant|linear|cosine"),
    derived("training.lr_decay_ratio", "1.0", "--lr-decay-iters").written([](const Resolved& r) -> Said {
      return decay_ratio(r);
    }),
    flag("training.weight_decay", "0", "--weight-decay"),
    derived("training.no_decay_modules", "[]", "--no-decay-modules, --no-weight-decay-on-norms-and-biases")
        .written(
            [](const Resolved& r) -> Said { return no_decay_text(r, "[norm]", r.job.optimizer.no_decay_modules); }),
    derived("training.no_decay_params", "[]", "--no-decay-params, --no-weight-decay-on-norms-and-biases")
        .written([](const Resolved& r) -> Said { return no_decay_text(r, "[bias]", r.job.optimizer.no_decay_params); }),
    derived("training.lr_scaling_plan", "null", "--lr-scaling-plan").written([](const Resolved& r) -> Said {
      return lr_scaling_text(r);
    }),
    refused("training.quantization_plan.recipe_name", "null", "quantized training is not built; remove it"),
    unused("training.quantization_plan.*"),
    flag("training.optimizer", "adamw", "--optimizer").as("adamw=adam|adamw_swap|muon"),
    derived("training.mem_fraction_static", "0.8", "--mem-fraction-static").written([](const Resolved& r) -> Said {
      return r.job.optimizer.kind == train::OptimizerKind::kAdamSwap ? Said(value_of(r, "--mem-fraction-static"))
                                                                     : std::nullopt;
    }),
    derived("training.muon_momentum", "0.95", "--muon-momentum").written([](const Resolved& r) -> Said {
      return of_muon(r, "--muon-momentum");
    }),
    derived("training.ns_steps", "5", "--muon-num-ns-steps").written([](const Resolved& r) -> Said {
      return of_muon(r, "--muon-num-ns-steps");
    }),
    derived("training.matched_adamw_rms", "0.2", "--muon-extra-scale-factor, --muon-scale-mode")
        .written([](const Resolved& r) -> Said { return of_muon(r, "--muon-extra-scale-factor"); }),
    flag("training.adam_beta1", "0.9", "--adam-beta1"),
    flag("training.adam_beta2", "0.999", "--adam-beta2"),
    flag("training.adam_eps", "1e-8", "--adam-eps"),
    flag("training.clip_grad", "1.0", "--clip-grad"),
    flag("training.micro_batch_size", "1", "--micro-batch-size"),
    derived("training.gradient_accumulation_steps", "null", "--global-batch-size")
        .written([](const Resolved& r) -> Said { return accumulation_text(r); }),
    refused("training.global_batch_size", "null", "cannot be set there; write gradient_accumulation_steps"),
    derived("training.train_iters", "10000", "--train-iters").written([](const Resolved& r) -> Said {
      return value_of(r, "--train-iters");
    }),
    derived("training.train_epochs", "null", "--train-iters"),
    derived("training.load", "null", "--load, --init-from-hf-path").written([](const Resolved& r) -> Said {
      return r.job.checkpoint.load ? Said(value_of(r, "--load")) : std::nullopt;
    }),
    derived("training.load_format", "auto", "").written([](const Resolved& r) -> Said {
      return r.job.checkpoint.load ? Said("dcp") : std::nullopt;
    }),
    derived("training.load_strict", "null", "--dist-ckpt-strictness"),
    flag("training.no_load_optim", "false", "--no-load-optim"),
    flag("training.no_load_rng", "false", "--no-load-rng"),
    derived("training.save", "null", "--save").written([](const Resolved& r) -> Said { return value_of(r, "--save"); }),
    derived("training.save_format", "auto", "--ckpt-format").written([](const Resolved& r) -> Said {
      return save_format(r);
    }),
    derived("training.save_interval", "1", "--save-interval").written([](const Resolved& r) -> Said {
      return r.job.schedule.save_interval > 0 ? Said(value_of(r, "--save-interval")) : std::nullopt;
    }),
    flag("training.save_async", "false", "--async-save"),
    derived("training.save_ckpt_dtype", "null", "--save-dtype").written([](const Resolved& r) -> Said {
      const std::string word = value_of(r, "--save-dtype");
      return word == "bf16" || word == "fp32" ? Said(word) : std::nullopt;
    }),
    flag("training.no_save_optim", "false", "--no-save-optim"),
    flag("training.no_save_rng", "false", "--no-save-rng"),
    flag("training.seed", "42", "--seed"),
    flag("training.log_interval", "1", "--log-interval"),
    derived("training.val_interval", "0", "--eval-interval, --eval-iters").written([](const Resolved& r) -> Said {
      return r.job.schedule.eval_iters == 0 ? "0" : value_of(r, "--eval-interval");
    }),
    unused("training.val_micro_batch_size")
        .note("except with val_interval, where a value other than micro_batch_size is refused"),
    derived("training.init_model_with_meta_device", "false", "--model-config").written([](const Resolved& r) -> Said {
      return switch_text(r.job.model.model_config.has_value());
    }),
    unused("training.use_deter_comp"),
    unused("training.allow_hf32"),
    unused("training.adam_fused"),
    unused("training.clip_grad_foreach"),
    unused("training.manual_gc_interval"),
    unused("training.load_rank0_and_broadcast"),
    unused("training.ckpt_manager", "dcp"),
    unused("training.plugin", "[]"),
    unused("training.enable_full_determinism"),
    refused("training.profile", "null", "is not read there; write tools.profile").also("false"),
    refused("training.load_checkpoint_path", "null", "is not read there; write training.load"),
    refused("training.save_steps", "null", "is not read there; write training.save_interval"),
    refused("training.max_steps", "null", "is not read there; write training.train_iters"),
    flat("training.lora", "null", "lora"),
    refused("training.max_epochs", "null", "is of the program for speech recognition; write train_epochs"),
    refused("training.clip_norm_type", "null", "is of the program for speech recognition; remove it"),
    refused("training.resume", "null", "is of the program for speech recognition; write load").also("false"),
    refused("training.scheduler", "null", "is of the program for speech recognition; write lr_decay_style"),
    refused("training.scheduler_conf", "null", "is of the program for speech recognition; write lr_decay_style"),
    refused("training.validate_interval", "null", "is of the program for speech recognition; write val_interval"),

    // --- tools
    derived("tools.profile.enable", "false", "--profile").written([](const Resolved& r) -> Said {
      return switch_text(r.job.profile.enabled);
    }),
    refused("tools.profile.profile_type", "static",
            "a profile that is started from outside is not built; write static"),
    derived("tools.profile.ranks", "[0]", "--profile-ranks").written([](const Resolved& r) -> Said {
      return of_profile(r, "--profile-ranks");
    }),
    derived("tools.profile.static_param.level", "level1", "--profile-level").written([](const Resolved& r) -> Said {
      return of_profile(r, "--profile-level");
    }),
    derived("tools.profile.static_param.with_stack", "false", "--profile-with-stack")
        .written([](const Resolved& r) -> Said { return of_profile(r, "--profile-with-stack"); }),
    derived("tools.profile.static_param.with_memory", "false", "--profile-with-memory")
        .written([](const Resolved& r) -> Said { return of_profile(r, "--profile-with-memory"); }),
    derived("tools.profile.static_param.record_shapes", "false", "--profile-record-shapes")
        .written([](const Resolved& r) -> Said { return of_profile(r, "--profile-record-shapes"); }),
    derived("tools.profile.static_param.with_cpu", "false", "--profile-with-cpu")
        .written([](const Resolved& r) -> Said { return of_profile(r, "--profile-with-cpu"); }),
    derived("tools.profile.static_param.save_path", "./profiling", "--profile-save-path")
        .written([](const Resolved& r) -> Said { return of_profile(r, "--profile-save-path"); }),
    derived("tools.profile.static_param.start_step", "10", "--profile-step-start")
        .written([](const Resolved& r) -> Said { return of_profile(r, "--profile-step-start"); }),
    derived("tools.profile.static_param.end_step", "11", "--profile-step-end").written([](const Resolved& r) -> Said {
      return of_profile(r, "--profile-step-end");
    }),
    unused("tools.profile.static_param.data_simplification", "false"),
    unused("tools.profile.static_param.aic_metrics_type"),
    unused("tools.profile.static_param.analyse_flag"),
    refused("tools.memory_profile.enable", "false", "is not built; write false, and --profile --profile-with-memory"),
    unused("tools.memory_profile.*"),
};

// --- What several keys say together

// Ranks that read the same samples.
std::int64_t ranks_of_a_sample(Reading& r) {
  return product({r.whole("parallel.ulysses_parallel_size"), r.whole("parallel.ring_attention_size"),
                  r.whole("parallel.tensor_parallel_size")});
}

// Modules that tp_plan.sequence_parallel names work on parts of the sequence: here all between the blocks do.
void derive_tensor(Reading& r) {
  constexpr std::string_view kSize = "parallel.tensor_parallel_size", kSequence = "parallel.tp_plan.sequence_parallel";
  if (r.whole(kSize) > 1) {
    r.note(fmt::format("{} is {}: its own tool takes 1 alone", kSize, r.whole(kSize)));
    set_patterns(r, "colwise_parallel", "parallel.tp_plan.colwise_parallel");
    set_patterns(r, "rowwise_parallel", "parallel.tp_plan.rowwise_parallel");
    if (!r.texts(kSequence).empty()) r.set_key("sequence_parallel", "true", kSequence);
    return;
  }
  for (const std::string_view list : {std::string_view("parallel.tp_plan.colwise_parallel"),
                                      std::string_view("parallel.tp_plan.rowwise_parallel"), kSequence}) {
    if (!r.texts(list).empty()) r.to().without_effect.emplace_back(list);
  }
}

void derive_parallel(Reading& r) {
  const std::int64_t data_ranks = r.whole("parallel.data_parallel_size");
  const std::int64_t shared = ranks_of_a_sample(r);
  if (r.knows_world() && r.is_given("parallel.data_parallel_size") && product({data_ranks, shared}) != r.world()) {
    const std::int64_t wanted = r.world() / std::max<std::int64_t>(1, shared);
    r.refuse("parallel.data_parallel_size",
             shared == 1 ? fmt::format("all {} ranks read data; write {} or remove it", wanted, wanted)
                         : fmt::format("{} ranks share each sequence; write {} or remove it", shared, wanted));
  }
  if (r.flag("parallel.recompute") && !r.flag("features.recompute")) {
    r.refuse("parallel.recompute", "switches nothing there; write features.recompute: true");
  }
  set_patterns(r, "sub_modules_to_wrap", "parallel.fsdp_plan.apply_modules");
  set_patterns(r, "ignored_modules", "parallel.fsdp_plan.ignored_modules");
  set_patterns(r, "freeze", "model.freeze");
  r.set_key("reshard_after_forward", r.flag("parallel.fsdp_plan.reshard_after_forward") ? "true" : "false",
            "parallel.fsdp_plan.reshard_after_forward");
  if (r.flag("parallel.fsdp_plan.cpu_offload")) {
    r.set_key("offload_to_cpu", "true", "parallel.fsdp_plan.cpu_offload");
    r.set_key("pin_memory", "true", "parallel.fsdp_plan.cpu_offload");
  }
  derive_tensor(r);
  derive_experts(r, "parallel.expert_parallel_size", "parallel.expert_fully_shard_parallel_size",
                 "parallel.ep_plan.apply_modules");
  constexpr std::string_view kDispatcher = "parallel.ep_plan.dispatcher";
  if (r.text(kDispatcher) == "allgather") r.set_key("moe_token_dispatcher_type", "allgather", kDispatcher);
  derive_hook_modules(r, "parallel.fsdp_plan.hook_modules", "parallel.fsdp_plan.apply_modules");
  derive_prefetch_order(r, "parallel.fsdp_plan.apply_modules", "parallel.fsdp_plan.num_to_forward_prefetch",
                        "parallel.fsdp_plan.num_to_backward_prefetch");
  const bool on_meta = r.flag("training.init_model_with_meta_device");
  if (r.text("parallel.fully_shard_parallel_size") == "1" && !on_meta) {
    r.note(
        "parallel.fully_shard_parallel_size is 1: parameters are stored in fp32 here, and there in param_dtype; "
        "--params-dtype bf16 stores them in bf16");
  }
}

void derive_features(Reading& r) {
  if (r.flag("features.recompute")) {
    set_patterns(r, "recompute_modules", "features.recompute_plan.apply_modules");
    r.set_key("use_reentrant", r.flag("features.recompute_plan.use_reentrant") ? "true" : "false",
              "features.recompute_plan.use_reentrant");
    if (!r.has_key("recompute_modules")) {
      r.refuse("features.recompute", "nothing is recomputed: name modules in features.recompute_plan.apply_modules");
    }
  }
  if (r.flag("features.enable_chunk_loss")) {
    const bool dynamic = r.flag("features.enable_dynamic_chunk_loss");
    r.set_flag_from(dynamic ? "--total-chunk-size" : "--loss-chunk-size",
                    dynamic ? "features.chunkloss_plan.total_chunk_size" : "features.chunkloss_plan.chunk_size");
  }
  if (r.flag("features.enable_activation_offload")) {
    set_patterns(r, "activation_offload_modules", "features.activation_offload_plan.apply_modules");
  }
  if (!r.flag("features.enable_chunk_mbs")) return;
  set_patterns(r, "chunk_mbs_modules", "features.chunkmbs_plan.apply_modules");
  r.set_key("chunk_mbs", r.text("features.chunkmbs_plan.chunk_mbs"), "features.chunkmbs_plan.chunk_mbs");
  for (const std::string_view name : {"chunk_arg_indexs", "chunk_kwarg_names"}) {
    if (const config::Value* value = r.value(fmt::format("features.chunkmbs_plan.{}", name))) r.set_key(name, *value);
  }
}

void derive_schedule(Reading& r) {
  derive_batch(r, "training.micro_batch_size", "training.gradient_accumulation_steps", ranks_of_a_sample(r));
  if (r.is_given("training.train_epochs")) {
    derive_epochs(r, "training.train_epochs", r.number("training.train_epochs"));
  } else {
    r.set_flag_from("--train-iters", "training.train_iters");
  }
  const double ratio = r.number("training.lr_decay_ratio");
  const auto iters = r.word_of("--train-iters");
  if (ratio != 1 && iters) {
    const auto steps = static_cast<std::int64_t>(std::llround(ratio * std::atof(iters->c_str())));
    r.set_flag("--lr-decay-iters", {fmt::to_string(std::max<std::int64_t>(1, steps))}, "training.lr_decay_ratio");
  }
  if (r.number("training.lr_warmup_ratio") != 0) r.set_flag_from("--lr-warmup-fraction", "training.lr_warmup_ratio");
  if (r.number("training.lr_start") != 0) r.set_flag_from("--lr-warmup-init", "training.lr_start");
  const std::int64_t interval = r.whole("training.val_interval");
  if (interval > 0) {
    constexpr std::string_view kRows = "training.val_micro_batch_size";
    r.set_flag_from("--eval-interval", "training.val_interval");
    if (r.is_given(kRows) && r.text(kRows) != r.text("training.micro_batch_size")) {
      r.refuse(kRows, "evaluation has the micro-batches of training; remove it");
    }
  } else {
    r.set_flag("--eval-iters", {"0"}, "training.val_interval");
  }
}

// A list of {match: REGEX, scale: FACTOR}.
void derive_lr_scaling(Reading& r) {
  constexpr std::string_view kKey = "training.lr_scaling_plan";
  const config::Value* plan = r.value(kKey);
  if (plan == nullptr) return;
  job::Texts rules;
  for (const config::Value& item : plan->items()) {
    const config::Value* match = item.is_mapping() ? item.find("match") : nullptr;
    const config::Value* scale = item.is_mapping() ? item.find("scale") : nullptr;
    if (match == nullptr || !match->is_scalar() || (scale != nullptr && !scale->is_scalar()) ||
        item.items().size() > (scale != nullptr ? 2U : 1U)) {
      return r.refuse(kKey, "write a list of {match: REGEX, scale: FACTOR}");
    }
    rules.push_back(fmt::format("{}={}", match->scalar(), scale != nullptr ? scale->scalar() : "1.0"));
  }
  if (!rules.empty()) r.set_flag("--lr-scaling-plan", std::move(rules), kKey);
}

// The classes' own loss (raw) and default are means over a micro-batch's scored tokens.
void derive_loss(Reading& r, const std::string& stage) {
  constexpr std::string_view kKey = "features.loss_cfg.loss_type";
  constexpr std::pair<std::string_view, const char*> kTypes[] = {{"raw", "micro_batch"},
                                                                 {"default", "micro_batch"},
                                                                 {"per_sample_loss", "per_sample"},
                                                                 {"per_token_loss", "per_token"}};
  const std::string type = r.text(kKey);
  const auto* found = std::ranges::find(kTypes, type, [](const auto& row) { return row.first; });
  if (found == std::end(kTypes)) {
    return r.refuse(kKey,
                    "use raw, default, per_sample_loss or per_token_loss; a custom loss is loss_func of a program");
  }
  if (stage != "rm") r.set_flag("--loss-reduction", {found->second}, kKey);
}

void derive_optimizer(Reading& r) {
  const std::string optimizer = r.text("training.optimizer");
  if (optimizer == "adamw_swap") r.set_flag_from("--mem-fraction-static", "training.mem_fraction_static");
  if (optimizer == "muon") {
    r.set_flag_from("--muon-momentum", "training.muon_momentum");
    r.set_flag_from("--muon-num-ns-steps", "training.ns_steps");
    r.set_flag_from("--muon-extra-scale-factor", "training.matched_adamw_rms");
    r.set_flag("--muon-scale-mode", {"spectral"}, "training.matched_adamw_rms");
  }
  derive_lr_scaling(r);
  const job::Texts modules = r.texts("training.no_decay_modules"), params = r.texts("training.no_decay_params");
  if (modules.empty() && params.empty()) return;
  if (names_norms_and_biases(modules, params)) {
    r.set_flag("--no-weight-decay-on-norms-and-biases", {},
               modules.empty() ? "training.no_decay_params" : "training.no_decay_modules");
  } else {
    if (!modules.empty()) r.set_flag("--no-decay-modules", modules, "training.no_decay_modules");
    if (!params.empty()) r.set_flag("--no-decay-params", params, "training.no_decay_params");
  }
}

// Which weights: those of model_name_or_path; with init_model_with_meta_device those of `load`, or fresh ones.
void derive_weights(Reading& r) {
  const std::string folder = r.text("model.model_name_or_path"), load = r.text("training.load");
  const std::string format = r.text("training.load_format");
  const bool on_meta = r.flag("training.init_model_with_meta_device");
  const bool load_is_hf = !load.empty() && (format == "hf" || (format == "auto" && has_hf_weights(load)));
  if (!load.empty() && !load_is_hf) r.set_flag_from("--load", "training.load");
  if (folder.empty()) return r.miss("model.model_name_or_path", "the folder of a model, with config.json");
  if (load_is_hf) {
    r.set_flag_from("--init-from-hf-path", "training.load");
    return r.note(fmt::format("weights: those of training.load, {}", load));
  }
  if (!on_meta) {
    r.set_flag_from("--init-from-hf-path", "model.model_name_or_path");
    return r.note(fmt::format("weights: those of model.model_name_or_path, {}", folder));
  }
  r.set_flag("--model-config", {(std::filesystem::path(folder) / "config.json").string()}, "model.model_name_or_path");
  r.note(load.empty()
             ? "weights: fresh ones, as training.init_model_with_meta_device is true and training.load is not given"
             : fmt::format("weights: those of the checkpoint training.load, {}", load));
}

void derive_outputs(Reading& r) {
  if (r.flag("training.load_strict")) r.set_flag("--dist-ckpt-strictness", {"raise_all"}, "training.load_strict");
  if (!r.is_given("training.save")) return;
  r.set_flag_from("--save", "training.save");
  std::string format = r.text("training.save_format");
  const bool load_is_hf = r.is_given("training.load") && !r.word_of("--load");
  if (format == "auto") format = load_is_hf ? "hf" : "dcp";
  r.set_flag("--ckpt-format", {format == "hf" ? "hf" : "torch_dcp"}, "training.save_format");
  const std::string dtype = r.text("training.save_ckpt_dtype");
  if (!dtype.empty()) r.set_flag_from("--save-dtype", "training.save_ckpt_dtype");
  if (format == "hf") return r.note("training.save_format hf: the model is written once, after the last step");
  if (r.whole("training.save_interval") > 0) r.set_flag_from("--save-interval", "training.save_interval");
  if (!r.is_given("training.save_interval")) {
    r.note("training.save_interval is not given: a checkpoint is saved after every step, as its tool does");
  }
}

void derive_profile(Reading& r) {
  if (!r.flag("tools.profile.enable")) return;
  r.set_flag("--profile", {}, "tools.profile.enable");
  constexpr std::pair<std::string_view, std::string_view> kFlags[] = {
      {"--profile-ranks", "tools.profile.ranks"},
      {"--profile-level", "tools.profile.static_param.level"},
      {"--profile-with-stack", "tools.profile.static_param.with_stack"},
      {"--profile-with-memory", "tools.profile.static_param.with_memory"},
      {"--profile-record-shapes", "tools.profile.static_param.record_shapes"},
      {"--profile-with-cpu", "tools.profile.static_param.with_cpu"},
      {"--profile-save-path", "tools.profile.static_param.save_path"},
      {"--profile-step-start", "tools.profile.static_param.start_step"},
      {"--profile-step-end", "tools.profile.static_param.end_step"}};
  for (const auto& [flag, key] : kFlags) r.set_flag_from(flag, key);
}

// The key that says that samples have pictures; empty: they have none.
std::string_view key_of_pictures(Reading& r) {
  constexpr std::string_view kKeys[] = {"data.dataset_param.attr.images", "data.dataset_param.attr.videos"};
  constexpr std::string_view kType = "data.dataset_param.dataset_type";
  if (r.text(kType) == "multimodal") return kType;
  for (const std::string_view key : kKeys) {
    if (r.is_given(key)) return key;
  }
  return {};
}

// A value that the command line set, which the reader of the data does not see; null: there is none.
const config::Value* overridden_in(const config::Value& value, std::string_view file) {
  if (!value.is_mapping()) return value.place().value.file == file ? nullptr : &value;
  for (const config::Value& member : value.items()) {
    if (const config::Value* found = overridden_in(member, file)) return found;
  }
  return nullptr;
}

// The file is the data's description too, whose own reader says what has no effect there.
void derive_pictures(Reading& r, std::string_view key) {
  const std::string file = r.to().file;
  if (const config::Value* value = overridden_in(*r.given("data"), file)) {
    return r.refuse(value->path(), "the data of pictures is read from the file alone; write it there");
  }
  const auto is_of_data = [](const std::string& path) { return path.starts_with("data."); };
  std::erase_if(r.to().without_effect, is_of_data);
  std::erase_if(r.to().listed, is_of_data);
  r.set_flag("--mm-data", {file}, key);
}

void derive_data(Reading& r) {
  const std::string_view pictures = key_of_pictures(r);
  const bool has_text = r.context().flag("--data-path").has_value();
  if (!has_text && !pictures.empty()) return derive_pictures(r, pictures);
  if (r.context().flag("--mm-data")) return;
  if (r.text("data.dataset_param.dataset_type") != "huggingface") r.list("data.dataset_param");
  if (r.is_given("data.dataset_param.attr")) r.list("data.dataset_param.attr");
  r.set_flag_from("--tokenizer-name-or-path", "data.dataset_param.preprocess_parameters.model_name_or_path");
  const std::string stage = r.text("data.dataset_param.basic_parameters.stage");
  constexpr std::string_view kStage = "data.dataset_param.basic_parameters.stage";
  if (stage == "sft") r.set_flag("--stage", {"sft"}, kStage);
  if (stage == "rm") r.set_flag("--stage", {"orm"}, kStage);
  if (stage != "sft" && stage != "rm" && stage != "pretrain") r.refuse(kStage, "use sft, rm or pretrain");
  if (stage == "sft" || stage == "rm") {
    r.set_flag_from("--pad-to-multiple-of", "data.dataloader_param.collate_param.pad_to_multiple_of");
    if (!r.flag("data.dataloader_param.shuffle")) r.set_flag("--no-shuffle", {}, "data.dataloader_param.shuffle");
  }
  derive_loss(r, stage);
  derive_dataset(r, "data.dataset_param.basic_parameters.dataset", "data.dataset_param.basic_parameters.dataset_dir",
                 "data.dataset_param.basic_parameters.template");
}

void derive_model(Reading& r) {
  find_model_class(r, r.text("model.model_id"), r.text("model.model_name_or_path"), "model.model_id");
  const bool is_built = r.to().model_is_built;
  // Families with gated delta or Kimi attention are not built.
  for (const std::string_view key : {"model.skip_gdn_recompute", "model.skip_kda_recompute"}) {
    if (r.is_given(key)) r.list(key);
  }
  constexpr std::string_view kKeep = "model.skip_flash_attn_recompute";
  const bool is_recorded = r.context().flag("--model-graph").has_value();
  if ((is_built || is_recorded) && r.flag(kKeep) && r.flag("features.recompute")) {
    r.set_key("recompute_keep", "attention", kKeep);
  } else if (r.is_given(kKeep)) {
    r.list(kKeep);
  }
  r.read_rest("model", is_built);
  const std::string attention = r.text("model.attn_implementation");
  constexpr std::string_view kKey = "model.attn_implementation";
  if (attention == "flash_attention_2" || attention == "flash_attention_3" || attention == "sdpa") {
    r.set_flag("--use-flash-attn", {}, kKey);
  } else if (attention == "eager") {
    r.set_flag("--kernels", {"pytorch"}, kKey);
  } else {
    r.refuse(kKey, "use flash_attention_2, flash_attention_3, sdpa or eager");
  }
}

void derive_native(Reading& r) {
  derive_weights(r);
  derive_model(r);
  derive_parallel(r);
  derive_features(r);
  derive_schedule(r);
  derive_optimizer(r);
  derive_outputs(r);
  derive_profile(r);
  derive_data(r);
}

}  // namespace

const Table& native_table() {
  static const Table table{Dialect::kNative, kRows, derive_native};
  return table;
}

}  // namespace loom::dialects
