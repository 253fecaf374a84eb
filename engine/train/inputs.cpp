#include "engine/train/inputs.h"

#include <algorithm>
#include <fmt/format.h>
#include <system_error>

#include "engine/config/share_folder.h"
#include "engine/core/error.h"
#include "engine/data/loss_in_model.h"
#include "engine/nn/make_rank.h"
#include "engine/nn/router_loss.h"
#include "engine/nn/stored_dtype.h"
#include "engine/train/context_rules.h"
#include "engine/train/memory_rules.h"
#include "engine/train/recompute_flags.h"
#include "engine/train/swap_rules.h"
#include "models/decoder/expert_slot.h"
#include "models/hf/hf_folder.h"
#include "models/hf/transformers_model.h"
#include "models/mixin/fsdp2_mixin.h"
#include "sharding/pipeline/keep_stage.h"

namespace loom::train {
namespace {

void check_callbacks(const PretrainCallbacks& callbacks) {
  if (!callbacks.train_valid_test_datasets_provider || !callbacks.model_provider || !callbacks.forward_step) {
    config_error("pretrain() needs train_valid_test_datasets_provider, model_provider and forward_step; one is empty");
  }
}

// The default of 1 is for those who know it; who leaves the key out wants shards.
void check_sharding_size_is_given(const sharding::Fsdp2Config& config, int ranks) {
  if (ranks == 1 || config.places.contains("sharding_size")) return;
  config_error(
      "{}: sharding_size is not given, and its default of 1 shards nothing over {} ranks; write sharding_size: auto "
      "(all ranks), or sharding_size: 1 where every rank shall hold the whole model",
      config.file_name, ranks);
}

// torch_dist cannot write an empty shard.
void check_torch_dist(nn::Module& model, const sharding::ResolvedFsdp2Config& plan,
                      const sharding::Fsdp2Config& config) {
  for (auto& [path, slot] : model.named_slots()) {
    if (slot->shard.global_shape.ndim() == 0 || slot->shard.global_shape[0] >= plan.layout.shard) continue;
    config_error(
        "{}: sharding_size is {}, but '{}' has {} row{}, and --ckpt-format torch_dist needs one a rank; write "
        "--ckpt-format torch_dcp",
        config.value_mark("sharding_size").text(), plan.layout.shard, path, slot->shard.global_shape[0],
        slot->shard.global_shape[0] == 1 ? "" : "s");
  }
}

// --bf16 and --fp16 of launch scripts mean computation in that type; with FSDP2 the file says so.
void check_param_dtype(const TrainSections& arguments, const sharding::Fsdp2Config& config) {
  const bool bf16 = arguments.parallel.bf16;
  if (!bf16 && !arguments.optimizer.fp16) return;
  const DType asked = bf16 ? DType::kBF16 : DType::kF16;
  if (config.param_dtype.value_or(arguments.model.params_dtype) == asked) return;
  config_error(
      "{}: param_dtype is {}, and --{} asks for {}; write param_dtype: {} (parameters stay {}, so that the optimizer "
      "can resume), or remove the flag",
      config.value_mark("param_dtype").text(),
      config.param_dtype ? std::string(name(*config.param_dtype)) : std::string("not given"), name(asked), name(asked),
      name(asked), name(arguments.model.params_dtype));
}

void warn_of_unscaled_fp16(const OptimizerOptions& optimizer, const sharding::Fsdp2Config& config,
                           sharding::ResolvedFsdp2Config& resolved) {
  if (optimizer.fp16 || config.param_dtype != DType::kF16) return;
  resolved.warnings.push_back(
      fmt::format("{}: param_dtype is fp16, and --fp16 is not given: the loss is not scaled, and gradients below 6e-8 "
                  "become 0; add --fp16, or write param_dtype: bf16",
                  config.value_mark("param_dtype").text()));
}

bool fits(const std::filesystem::path& file, nn::Module& model, sharding::GatherLayout layout, int ranks) {
  try {
    sharding::resolve_fsdp2(model, sharding::load_fsdp2_config(file), ranks, layout);
    return true;
  } catch (const ConfigError&) {
    return false;
  }
}

// The files in configs/fsdp2 whose modules this model has.
std::vector<std::string> fitting_presets(nn::Module& model, sharding::GatherLayout layout, int ranks) {
  const auto share = config::share_folder();
  std::vector<std::string> names = config::preset_names("fsdp2");
  std::erase_if(names, [&](const std::string& name) {
    return !fits(*share / "configs" / "fsdp2" / (name + ".yaml"), model, layout, ranks);
  });
  return names;
}

bool is_preset(const std::filesystem::path& file) {
  const auto share = config::share_folder();
  std::error_code none;
  return share && std::filesystem::equivalent(file, *share / "configs" / "fsdp2" / file.filename(), none);
}

// fsdp2_config.yaml is about these.
int ranks_of_stage(const TrainSections& arguments) {
  const int stages = arguments.parallel.pipeline.pipeline_model_parallel_size;
  if (arguments.launch.ranks % stages == 0) return arguments.launch.ranks / stages;
  config_error("--pipeline-model-parallel-size is {}, of {} rank{}; use a divisor", stages, arguments.launch.ranks,
               arguments.launch.ranks == 1 ? "" : "s");
}

// The file against the model. One of ours that does not fit: the error says which do.
sharding::ResolvedFsdp2Config resolve(const TrainSections& arguments, nn::Module& model,
                                      const sharding::Fsdp2Config& config) {
  const sharding::GatherLayout layout = gather_layout(arguments.parallel, arguments.kernels.set);
  const int ranks = ranks_of_stage(arguments);
  try {
    return sharding::resolve_fsdp2(model, config, ranks, layout);
  } catch (const ConfigError& error) {
    const auto& path = arguments.parallel.fsdp2_config_path;
    if (!path || !is_preset(*path)) throw;
    const std::vector<std::string> presets = fitting_presets(model, layout, ranks);
    if (presets.empty()) throw;
    config_error("{}; of the files in configs/fsdp2, {} {} {} on {} rank{}", error.what(), fmt::join(presets, ", "),
                 presets.size() == 1 ? "fits" : "fit", model.type_name(), ranks, ranks == 1 ? "" : "s");
  }
}

void check_evaluates(const ScheduleOptions& schedule, const data::DataLoaders& data) {
  if (!schedule.skip_train || data.valid || data.test) return;
  config_error(
      "--skip-train evaluates only, but there is no data for it{}{}; give --held-out-fraction above 0 (text), "
      "--valid-data-path or a larger share in --split (.bin/.idx pairs), or a valid or test loader",
      data.warnings.empty() ? "" : ": ", fmt::join(data.warnings, "; "));
}

// Nothing is shared without FSDP2.
void check_one_rank(const ParallelOptions& options) {
  for (const auto& [flag, ranks] :
       {std::pair{"--context-parallel-size", options.context_parallel_size},
        std::pair{"--tensor-model-parallel-size", options.tensor_model_parallel_size},
        std::pair{"--expert-model-parallel-size", options.expert_model_parallel_size},
        std::pair{"--pipeline-model-parallel-size", options.pipeline.pipeline_model_parallel_size}}) {
    if (ranks <= 1) continue;
    config_error("{} is {}, which needs --use-torch-fsdp2 --fsdp2-config-path FILE and {} ranks; write 1, or add them",
                 flag, ranks, ranks);
  }
}

// The file as it is.
void load_sharding(const TrainSections& arguments, const EditConfig& edit, TrainingInputs& inputs) {
  if (!arguments.parallel.use_torch_fsdp2) {
    apply_recompute_flags(arguments.parallel, /*is_edited=*/false, nullptr);
    check_one_rank(arguments.parallel);
    if (arguments.launch.ranks == 1) return;
    config_error("{} ranks need --use-torch-fsdp2 --fsdp2-config-path FILE; without sharding use --nproc-per-node 1",
                 arguments.launch.ranks);
  }
  sharding::Fsdp2Config& config = inputs.fsdp2_config.emplace(read_sharding(arguments.parallel));
  if (edit) edit(config);
  apply_recompute_flags(arguments.parallel, /*is_edited=*/edit != nullptr, &config);
  check_param_dtype(arguments, config);
}

// Ranks that share a sequence are among those that shard, or these among them.
ParallelDegrees degrees_of(const sharding::ResolvedFsdp2Config& config, int stages) {
  const int ranks = config.layout.shard * config.layout.replicate, cp = config.sequences.degrees.ranks();
  const int dp_shard = std::max(1, config.layout.shard / cp);
  return {.dp_replicate = ranks / (cp * dp_shard),
          .dp_shard = dp_shard,
          .cp = cp,
          .tp = config.layout.tensor,
          .pp = stages};
}

// Whether the flags choose some of the layers, or several at a time.
bool counts_layers(const models::LayerRecompute& layers) {
  return layers.method == models::RecomputeMethod::kBlock || layers.num_layers > 1 ||
         layers.activation_function_num_layers || layers.norm_num_layers;
}

// What does not go with stages, by its flag or key, is refused.
void check_goes_with_stages(const TrainSections& arguments, nn::Module& model, const TrainingInputs& inputs) {
  const std::pair<bool, std::string_view> refused[] = {
      {model.attachment<nn::RouterLoss>() != nullptr, "losses of routers"},
      {inputs.tuning.lora.has_value(), "adapters"},
      {counts_layers(arguments.parallel.recompute_layers),
       "a number of layers to recompute, which would be of a stage (write recompute_modules in fsdp2_config.yaml)"},
      {inputs.fsdp2_config->pregather, "pregather"},
      {!inputs.fsdp2_config->sync_each_batch, "sync_each_batch: false (gradients of a stage are always reduced once)"},
      {!inputs.fsdp2_config->reshard_after_backward,
       "reshard_after_backward: false (a stage always keeps parameters until its last backward)"},
      {arguments.memory.reuse_fp32_param, "--reuse-fp32-param"},
      {arguments.memory.adaptive_recompute, "--adaptive-recompute-device-swap, which chooses by one rank"},
      {arguments.swap.smart_swap, "--smart-swap, which chooses by one rank"},
      {arguments.log.log_norms_by_layer, "--log-norms-by-layer"},
      {arguments.optimizer.kind == OptimizerKind::kMuon, "--optimizer muon"},
      {objective::row_of(arguments.objective.stage).forward != objective::Forward::kNextToken, "this --stage"},
  };
  for (const auto& [is_set, what] : refused) {
    if (!is_set) continue;
    config_error("--pipeline-model-parallel-size {} does not go with {} in this version; remove one of them",
                 arguments.parallel.pipeline.pipeline_model_parallel_size, what);
  }
}

void plan_stages(const TrainSections& arguments, nn::Module& model, TrainingInputs& inputs) {
  if (!arguments.parallel.pipeline.is_on()) return;
  check_goes_with_stages(arguments, model, inputs);
  inputs.pipeline = plan_pipeline(
      arguments.parallel.pipeline, sharding::pipeline_layers(model),
      inputs.dims.micro_batches(arguments.schedule.global_batch_size, arguments.schedule.micro_batch_size));
  inputs.pipeline->parameters = model.parameter_count();
  inputs.pipeline->has_experts = !models::expert_blocks(model).empty();
}

void check_optimizer(OptimizerKind kind, const sharding::SharedMatrices& matrices,
                     const sharding::Fsdp2Config& config) {
  if (kind != OptimizerKind::kMuon || matrices.ranks == 1) return;
  config_error("{}: tensor_parallel_size is {}, and --optimizer muon needs whole matrices; use adam, or write 1",
               config.value_mark("tensor_parallel_size").text(), matrices.ranks);
}

// The file against the model, which is tuned.
void resolve_sharding(const TrainSections& arguments, nn::Module& model, TrainingInputs& inputs) {
  std::vector<std::string> said;
  inputs.recomputed = choose_layers(model, arguments.parallel, arguments.kernels.fused.flash_attn,
                                    inputs.fsdp2_config ? &*inputs.fsdp2_config : nullptr, said);
  if (!inputs.fsdp2_config) {
    inputs.said.insert(inputs.said.end(), said.begin(), said.end());
    return;
  }
  auto& by_path = inputs.fsdp2_config->recompute_by_path;  // the choices of an edit come first
  by_path.insert(by_path.end(), inputs.recomputed.begin(), inputs.recomputed.end());
  const sharding::Fsdp2Config& config = *inputs.fsdp2_config;
  const DType output = config.output_dtype.value_or(DType::kF32);
  if (arguments.objective.loss_chunk_size > 0 && output != DType::kF32 && output != DType::kF64) {
    config_error(
        "{}: output_dtype is {}, and with --loss-chunk-size the model's output is the loss, which would be rounded to "
        "it; remove one of them",
        sharding_file(arguments.parallel), name(output));
  }
  inputs.fsdp2 = resolve(arguments, model, config);
  inputs.dims = ParallelDims(degrees_of(*inputs.fsdp2, arguments.parallel.pipeline.pipeline_model_parallel_size),
                             arguments.launch.ranks);
  plan_stages(arguments, model, inputs);
  check_optimizer(arguments.optimizer.kind, inputs.fsdp2->matrices, config);
  inputs.fsdp2->warnings.insert(inputs.fsdp2->warnings.end(), said.begin(), said.end());
  warn_of_unscaled_fp16(arguments.optimizer, config, *inputs.fsdp2);
  check_sharding_size_is_given(config, arguments.launch.ranks);
  if (arguments.checkpoint.ckpt_format == CheckpointFormat::kTorchDist) check_torch_dist(model, *inputs.fsdp2, config);
}

objective::Objective objective_of(const TrainSections& arguments, const PretrainCallbacks& callbacks,
                                  const TrainArguments& asked) {
  objective::Auxiliary auxiliary = objective::Auxiliary::kNone;
  if (arguments.objective.ref_logps_cache) auxiliary = objective::Auxiliary::kValues;
  if (callbacks.has_reference_model) auxiliary = objective::Auxiliary::kModel;
  return {.loaders = callbacks.train_valid_test_datasets_provider(asked),
          .forward_step = callbacks.forward_step,
          .auxiliary = auxiliary,
          .unit = callbacks.loss_unit,
          .loss_chunk_size = arguments.objective.loss_chunk_size};
}

// A model's own weights have one tensor for the two parameters.
void check_own_weights(nn::Module& model, const models::ModelOptions& arguments,
                       const std::vector<models::Untied>& untied) {
  const auto* transformers = dynamic_cast<const models::TransformersModel*>(&model);
  if (untied.empty() || arguments.init_from_hf_path || transformers == nullptr || !transformers->weights()) return;
  config_error(
      "--untie-embeddings-and-output-weights: the model reads tied weights of its own; add --init-from-hf-path {}, "
      "from which both copies are read",
      transformers->weights()->folder().string());
}

}  // namespace

sharding::GatherLayout gather_layout(const ParallelOptions& options, KernelSet kernels) {
  return options.gather_layout.value_or(kernels == KernelSet::kFast ? sharding::GatherLayout::kFast
                                                                    : sharding::GatherLayout::kBuffered);
}

bool waits_in_backward(const OptimizerOptions& options, KernelSet kernels) {
  return !options.overlap_cpu_optimizer.value_or(kernels == KernelSet::kFast);
}

const io::HfWeights* loaded_weights(const TrainingInputs& inputs, const nn::Module& model) {
  if (inputs.weights) return &*inputs.weights;
  const auto* transformers = dynamic_cast<const models::TransformersModel*>(&model);
  return transformers == nullptr ? nullptr : transformers->weights();
}

std::shared_ptr<nn::Module> provide_model(const TrainSections& arguments, const PretrainCallbacks& callbacks,
                                          std::vector<models::Untied>* untied) {
  auto model = callbacks.model_provider(TrainArguments(arguments));
  if (!model) config_error("model_provider returned no model");
  if (arguments.model.untie_embeddings_and_output_weights) {
    auto found = models::untie_embeddings_and_output_weights(models::sharded_module(*model));
    if (untied != nullptr) *untied = std::move(found);
  }
  nn::store_parameters_in(*model, arguments.model.params_dtype);
  return model;
}

std::shared_ptr<nn::Module> provide_tuned_model(const TrainSections& arguments, const PretrainCallbacks& callbacks,
                                                const Tuning& tuning) {
  auto model = provide_model(arguments, callbacks);
  apply_tuning(models::sharded_module(*model), tuning);
  models::apply_expert_options(*model, arguments.model.experts);
  if (arguments.objective.loss_in_model) data::put_loss_in_model(*model, models::sharded_module(*model));
  return model;
}

TrainingInputs read_inputs(const TrainSections& arguments, const PretrainCallbacks& callbacks, const EditConfig& edit) {
  check_callbacks(callbacks);
  TrainingInputs inputs;
  inputs.custom_operators = custom::open_libraries(arguments.kernels.custom_op_libraries);
  const nn::ProbeRank rank;
  std::vector<models::Untied> untied;
  const auto model = provide_model(arguments, callbacks, &untied);
  nn::Module& sharded = models::sharded_module(*model);
  check_own_weights(*model, arguments.model, untied);
  load_sharding(arguments, edit, inputs);
  inputs.tuning = tuning_of(arguments.model, arguments.parallel, inputs.fsdp2_config ? &*inputs.fsdp2_config : nullptr);
  inputs.said = apply_tuning(sharded, inputs.tuning);
  models::apply_expert_options(*model, arguments.model.experts);
  resolve_sharding(arguments, sharded, inputs);
  check_swap(arguments.swap, inputs);
  if (arguments.model.init_from_hf_path) {
    inputs.weights.emplace(*arguments.model.init_from_hf_path);
    for (const models::Untied& tie : untied) models::share_stored(*inputs.weights, tie);
    models::check_weights(sharded, *inputs.weights);
  }
  if (arguments.objective.ref_model) {
    inputs.reference_weights.emplace(*arguments.objective.ref_model);
    for (const models::Untied& tie : untied) models::share_stored(*inputs.reference_weights, tie);
    models::check_weights(sharded, *inputs.reference_weights);
  }
  inputs.arguments = std::make_unique<const TrainArguments>(arguments);
  inputs.objective = objective_of(arguments, callbacks, *inputs.arguments);
  if (arguments.objective.loss_reduction != objective::LossReduction::kPerToken)
    inputs.objective.loaders.count_tokens = {};
  split_sequences(arguments, inputs);
  if (!inputs.objective.loaders.train && !arguments.schedule.skip_train)
    config_error("train_valid_test_datasets_provider returned no train loader");
  check_device_memory(arguments.memory, inputs);
  check_evaluates(arguments.schedule, inputs.objective.loaders);
  return inputs;
}

}  // namespace loom::train
