// TrainingInputs: the results of the callbacks and the user's files, checked against one another before anything is
// allocated.
//
// Checked   the model, fsdp2_config.yaml against its tree and the number of ranks, weights against the model, flags
//           against all of these. Const afterwards: the rank threads of a process share one.
// Errors    ConfigError, the same on every rank.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "engine/custom_op/library.h"
#include "engine/formats/safetensors/hf_weights.h"
#include "engine/objective/objective.h"
#include "engine/train/callbacks.h"
#include "engine/train/parallel_dims.h"
#include "engine/train/pipeline/pipeline_plan.h"
#include "engine/train/tuning.h"
#include "models/hf/untie.h"
#include "sharding/parallelize.h"

namespace loom::train {

struct TrainingInputs {
  std::unique_ptr<const TrainArguments> arguments;     // for the callbacks; the loaders may refer to it
  objective::Objective objective;                      // its loaders, forward and auxiliary model
  std::optional<io::HfWeights> weights;                // --init-from-hf-path
  std::optional<io::HfWeights> reference_weights;      // --ref-model; none: the weights that training starts from
  std::optional<sharding::Fsdp2Config> fsdp2_config;   // --use-torch-fsdp2
  std::optional<sharding::ResolvedFsdp2Config> fsdp2;  // that file resolved against the model
  std::vector<sharding::RecomputedModule> recomputed;  // by flags; also in `fsdp2`, if that is set
  ParallelDims dims{{}, 1};                            // of the job
  std::optional<PipelinePlan> pipeline;                // of --pipeline-model-parallel-size above 1
  Tuning tuning;                                       // adapters and frozen modules
  custom::Libraries custom_operators;                  // --custom-op-library; every rank loads them
  std::vector<std::string> said;                       // notes on tuning, which one rank prints
};

// Changes a configuration.
using EditConfig = std::function<void(sharding::Fsdp2Config& config)>;

// Called once per process, before the ranks start.
// `edit`, if given, changes the configuration between reading and checking.
TrainingInputs read_inputs(const TrainSections& arguments, const PretrainCallbacks& callbacks,
                           const EditConfig& edit = nullptr);

// The model of model_provider, stored in --params-dtype, with its ties undone if a flag requests it; `untied`, unless
// null, gets their list.
std::shared_ptr<nn::Module> provide_model(const TrainSections& arguments, const PretrainCallbacks& callbacks,
                                          std::vector<models::Untied>* untied = nullptr);

// The same with the adapters and frozen modules of `tuning`: the model that is trained.
std::shared_ptr<nn::Module> provide_tuned_model(const TrainSections& arguments, const PretrainCallbacks& callbacks,
                                                const Tuning& tuning);

// The weights that a model starts from: from --init-from-hf-path, or from its own folder. Null: it has none.
const io::HfWeights* loaded_weights(const TrainingInputs& inputs, const nn::Module& model);

// That of --gather-layout; without it, the layout that the kernels have by default.
sharding::GatherLayout gather_layout(const ParallelOptions& options, KernelSet kernels);
// Whether backward waits for offloaded gradients, as in PyTorch: unless --overlap-cpu-optimizer-d2h-h2d is on.
bool waits_in_backward(const OptimizerOptions& options, KernelSet kernels);

}  // namespace loom::train
