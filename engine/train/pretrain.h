// pretrain: a training program from three callbacks, as Megatron and MindSpeed-MM have it.
//
//   int main(int argc, char** argv) {
//     return loom::train::pretrain(argc, argv, {train_valid_test_datasets_provider, model_provider, forward_step});
//   }
//
// Yours     the data, the model, and what one forward is: get_batch and loss_func.
// The loop  flags and their checks, ranks, sharding, first values or weights from --init-from-hf-path, backward,
//           gradient clipping, AdamW, the learning-rate schedule, evaluation, metrics, saving.
// Order     datasets provider and model provider run once on the main thread, where everything that can be wrong with
//           the user's files is found before anything is allocated; then the ranks start, and the model provider runs
//           once on every rank. Per step and micro-batch: forward_step, loss_func, backward.
// Sharding  a model that is a models::FSDP2Mixin is sharded by its own fully_shard; any other by the file of
//           --fsdp2-config-path applied as it is.
// Threads   ranks are threads of this process unless an MPI launcher started it: the callbacks run on several threads
//           at once. They may read what they share and must not write it.
// Errors    what a callback throws ends the job: ConfigError with exit status 2, anything else with 1.
// Source    Megatron-LM, megatron/training/training.py.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/nn/module.h"
#include "engine/nn/value.h"
#include "engine/train/arguments.h"

namespace loom::train {

// --- Data

// One micro-batch of one rank: tensors (of the host; operators read token ids and targets there) and other values by
// name.
struct Batch {
  nn::ValueDict values;

  // Throw InvariantError naming what there is instead.
  const nn::Value& at(std::string_view name) const;
  const Tensor& operator[](std::string_view name) const { return at(name).tensor(); }
};

// Makes the micro-batch of these samples. They are numbered from 0 over the whole training: a data set that is shorter
// begins again (number modulo size, shuffled as it likes). Evaluation begins at 0 each time. The numbers that come up
// in a step do not depend on the number of ranks.
using DataLoader = std::function<Batch(std::span<const std::int64_t> samples)>;

struct DataLoaders {
  DataLoader train = {};
  DataLoader valid = {};   // every --eval-interval steps; none: no evaluation
  DataLoader test = {};    // once after training; none: no test
  std::string about = {};  // one line on the data, printed at the start
};

// The micro-batches of one rank in their order, without end: one for each forward_step.
class DataIterator {
 public:
  using Next = std::function<Batch()>;
  explicit DataIterator(Next next) : next_(std::move(next)) {}

  Batch next() { return next_(); }

 private:
  Next next_;
};

// --- One forward

struct Loss {
  Loss(Tensor loss) : loss(std::move(loss)) {}  // NOLINT: a loss is mostly this alone
  Loss(Tensor loss, std::vector<std::pair<std::string, double>> reports)
      : loss(std::move(loss)), reports(std::move(reports)) {}

  Tensor loss;  // one element; the mean over the micro-batch
  // Further figures for metrics.jsonl, averaged over micro-batches and ranks; the same names on every rank and step.
  std::vector<std::pair<std::string, double>> reports = {};
};

// From the model's output. Takes the output over: what it lets go of, backward may write on.
using LossFunc = std::function<Loss(nn::Value output)>;

struct ForwardResult {
  nn::Value output;
  LossFunc loss_func;
};

// --- The callbacks

using DatasetsProvider = std::function<DataLoaders(const TrainArguments&)>;
// The same model on every call. Parameters are on the meta device, as modules register them.
using ModelProvider = std::function<std::shared_ptr<nn::Module>(const TrainArguments&)>;
using ForwardStep = std::function<ForwardResult(DataIterator&, nn::Module&)>;
// Adds the program's own flags to those of the loop; their values are set before any other callback runs.
using ExtraArgsProvider = std::function<void(ExtraArguments&)>;

struct PretrainCallbacks {
  DatasetsProvider train_valid_test_datasets_provider = {};
  ModelProvider model_provider = {};
  ForwardStep forward_step = {};
  ExtraArgsProvider extra_args_provider = {};

  // With --save, on rank 0: writes the model folder from the whole parameters under their paths. None: model.safetensors
  // and the config.json of --init-from-hf-path.
  using SaveModel = std::function<void(const std::filesystem::path& folder, const TrainArguments&,
                                       const std::vector<std::pair<std::string, Tensor>>& tensors)>;
  SaveModel save_model = {};
  // After training and saving, on every rank; rank 0's `out` is the program's.
  std::function<void(nn::Module& model, const TrainArguments&, std::ostream& out)> after_training = {};
  std::string loss_unit = {};  // "nats per byte", printed behind evaluations
};

// The main of a program: parses the flags, trains, and returns the exit status: 0 done, 1 a run failed, 2 the command
// line or a file of the user's is wrong. Errors go to stderr in one line that begins with the program's name.
int pretrain(int argc, const char* const* argv, const PretrainCallbacks& callbacks);

// The same behind a parsed command line; rank 0 reports to `out`. Throws instead.
void pretrain(const TrainArguments& arguments, const PretrainCallbacks& callbacks, std::ostream& out);

}  // namespace loom::train
