// TrainingInputs: what the callbacks and the user's files give, checked against one another before anything is
// allocated.
//
// Checked   the model, fsdp2_config.yaml against its tree and the number of ranks, weights against the model, flags
//           against all of these. Const afterwards: the rank threads of a process share one.
// Errors    ConfigError, the same on every rank.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "engine/formats/safetensors/hf_weights.h"
#include "engine/train/callbacks.h"
#include "engine/train/parallel_dims.h"
#include "engine/train/tuning.h"
#include "models/hf/untie.h"
#include "sharding/parallelize.h"

namespace loom::train {

struct TrainingInputs {
  std::unique_ptr<const TrainArguments> arguments;     // of the callbacks; the loaders may refer to it
  data::DataLoaders data;                              // with a train loader, unless --skip-train
  std::optional<io::HfWeights> weights;                // --init-from-hf-path
  std::optional<io::HfWeights> reference_weights;      // --ref-model; none: those that training starts from
  std::optional<sharding::Fsdp2Config> fsdp2_config;   // --use-torch-fsdp2
  std::optional<sharding::ResolvedFsdp2Config> fsdp2;  // that file resolved against the model
  std::vector<sharding::RecomputedModule> recomputed;  // by flags; in `fsdp2` too, where that is
  ParallelDims dims{{}, 1};                            // of the job
  Tuning tuning;                                       // adapters and frozen modules
  std::vector<std::string> said;                       // of that, for one rank to print
};

// Changes a configuration.
using EditConfig = std::function<void(sharding::Fsdp2Config& config)>;

// Called once a process, before the ranks start.
// `edit`, where given, changes the configuration between reading and checking.
TrainingInputs read_inputs(const TrainSections& arguments, const PretrainCallbacks& callbacks,
                           const EditConfig& edit = nullptr);

// What model_provider gives, its ties undone where that is asked for; which ones, is written to `untied` unless null.
std::shared_ptr<nn::Module> provide_model(const TrainSections& arguments, const PretrainCallbacks& callbacks,
                                          std::vector<models::Untied>* untied = nullptr);

// The same, with adapters and frozen modules as `tuning` has them: the model that is trained.
std::shared_ptr<nn::Module> provide_tuned_model(const TrainSections& arguments, const PretrainCallbacks& callbacks,
                                                const Tuning& tuning);

// The weights a model starts from: those of --init-from-hf-path, or those it reads by itself. Null: it has none.
const io::HfWeights* loaded_weights(const TrainingInputs& inputs, const nn::Module& model);

// How gathered parameters are laid out with these kernels.
sharding::GatherLayout gather_layout(KernelSet kernels);
// Whether backward waits for offloaded gradients, as PyTorch's does: unless --overlap-cpu-optimizer-d2h-h2d is on.
bool waits_in_backward(const OptimizerOptions& options, KernelSet kernels);

}  // namespace loom::train
