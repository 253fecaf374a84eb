// PretrainCallbacks: a training program's own parts: its data, its model, and one forward.
//
// Threads   ranks may be threads of one process: the callbacks run on several threads at once. They may read what they
//           share and must not write it.
// Source    Megatron-LM, megatron/training/training.py.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "engine/data/step.h"
#include "engine/nn/module.h"
#include "engine/train/arguments.h"
#include "engine/train/sections.h"

namespace loom::train {

// Flags a pretrain program adds to the loop's own (engine/cli/pretrain.h). The variables outlive the parse, which
// writes them; their values before it are the defaults that --help shows. Ranks that are processes must get the
// same values (engine/train/same_job.h).
class ExtraArguments {
 public:
  virtual ~ExtraArguments() = default;

  // The flags added after this call are listed under this heading in --help.
  virtual void group(const std::string& heading) = 0;
  virtual void whole(const std::string& flag, std::int64_t& value, std::int64_t least, const std::string& about) = 0;
  virtual void real(const std::string& flag, double& value, const std::string& about) = 0;  // finite
  virtual void text(const std::string& flag, std::string& value, const std::string& about) = 0;
  virtual void toggle(const std::string& flag, bool& value, const std::string& about) = 0;
  // Flags of a command line that runs. --help shows them at its end, behind the program's name.
  virtual void example(const std::string& flags) = 0;
};

using DatasetsProvider = std::function<data::DataLoaders(const TrainArguments&)>;
// The same model on every call. Parameters are on the meta device, as modules register them.
using ModelProvider = std::function<std::shared_ptr<nn::Module>(const TrainArguments&)>;

// Adds the program's own flags to the loop's flags; their values are set before any other callback runs.
using ExtraArgsProvider = std::function<void(ExtraArguments&)>;

// Sequences of a micro-batch.
struct MicroBatchSizes {
  std::int64_t least = 1;
  std::int64_t most = std::numeric_limits<std::int64_t>::max();
};

struct PretrainCallbacks {
  DatasetsProvider train_valid_test_datasets_provider = {};
  ModelProvider model_provider = {};
  data::ForwardStep forward_step = {};
  ExtraArgsProvider extra_args_provider = {};

  // With --save, on rank 0: writes the model folder from the whole parameters under their paths. None:
  // model.safetensors and the config.json of --init-from-hf-path.
  using SaveModel = std::function<void(const std::filesystem::path& folder, const TrainArguments&,
                                       const std::vector<std::pair<std::string, Tensor>>& tensors)>;
  SaveModel save_model = {};
  // Called after training and saving, on every rank; rank 0's `out` is the program's.
  std::function<void(nn::Module& model, const TrainArguments&, std::ostream& out)> after_training = {};
  // forward_step reads objective::reference_log_probs() of its batch: the same provider makes a second, frozen model.
  // Without it, or with --ref-logps-cache, the log probabilities are computed before training.
  bool has_reference_model = false;
  MicroBatchSizes micro_batch_sizes = {};  // that the model exists for; a search of plans tries these
  std::string loss_unit = {};              // "nats per byte", printed behind evaluations
};

}  // namespace loom::train
