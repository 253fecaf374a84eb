// The input and the result of a step: batches, their source, and the forward of a micro-batch with its loss.
//
// Threads  a loader may be called by several ranks' threads at once: it may read what they share and must not write it.
//          A Batch and a DataIterator belong to one rank's host thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/nn/module.h"
#include "engine/nn/value.h"

namespace loom::data {

// --- Data

// One micro-batch of one rank: tensors (of the host; operators read token ids and targets there) and other values by
// name.
struct Batch {
  nn::ValueDict values;
  // One per row: its log probability in the reference model, if the objective has one (engine/objective/objective.h).
  std::vector<double> reference_log_probs = {};
  // Where ranks share sequences: the part of the whole micro-batch's scored tokens that this rank has.
  double share = 1;

  // Throw ModelError naming the existing values.
  const nn::Value& at(std::string_view name) const;
  const Tensor& operator[](std::string_view name) const { return at(name).tensor(); }
  // None if there is none.
  const nn::Value& find(std::string_view name) const;
};

// The batch with every tensor on the current rank's device. The copy is not an event of the step: a batch is on the
// device when the step begins. Shapes without values (tensors on the meta device) are enough for a dry run.
Batch to_device(const Batch& batch);

// Makes the micro-batch of these samples. They are numbered from 0 over the whole training: a data set that is shorter
// begins again (number modulo size, shuffled as it likes). Evaluation begins at 0 each time. The numbers that come up
// in a step do not depend on the number of ranks.
using DataLoader = std::function<Batch(std::span<const std::int64_t> samples)>;

struct TokenCounts {
  std::int64_t scored = 0;  // the loss is their mean
  std::int64_t all = 0;
  std::optional<double> weight = {};  // of the batch's loss among those of the step; none: as many as are scored

  double loss_weight() const { return weight.value_or(static_cast<double>(scored)); }
};
// Counts the tokens of a micro-batch.
using CountTokens = std::function<TokenCounts(const Batch&)>;

// All samples of the files under numbers of their own, whatever part, epoch and order a run draws them in.
struct NumberedSamples {
  DataLoader batch = {};  // of these numbers, each from 0 to count - 1
  std::int64_t count = 0;
  std::function<std::string()> digest = {};  // of all their bytes, which it reads: 16 hexadecimal digits
};

struct DataLoaders {
  DataLoader train = {};
  DataLoader valid = {};  // every --eval-interval steps; none: no evaluation
  DataLoader test = {};   // once after training; none: no test
  // With it, the loss of a step is the mean over the scored tokens of all its micro-batches on all ranks: each one's
  // loss weighs as many as it has. Without it, each micro-batch weighs the same.
  CountTokens count_tokens = {};
  std::string about = {};                  // one line on the data, printed at the start
  std::vector<std::string> warnings = {};  // a line each, for one rank to print
  // Where sample `number` of `train` lies, for messages: "line 7 of data/alpaca". None: the number is all there is.
  std::function<std::string(std::int64_t number)> place = {};
  // If set, batches of the loaders have "numbers", a list of whole numbers: the numbers of their samples.
  std::optional<NumberedSamples> numbered = {};
};

// The micro-batch of one forward_step, for which it calls next() once. The trainer keeps its position in
// the data (train/train_state.h): an iterator has none.
class DataIterator {
 public:
  // `loader` outlives it.
  DataIterator(const DataLoader& loader, std::vector<std::int64_t> samples)
      : loader_(&loader), samples_(std::move(samples)) {}
  // A micro-batch that exists already.
  explicit DataIterator(Batch batch) : batch_(std::move(batch)) {}

  // On the current rank's device (to_device). ConfigError when it is called a second time.
  Batch next();

  // The objective's values for the forward, which the trainer sets before it (engine/objective/objective.h).
  // `complete` gets the batch that next() returns; empty: nothing is added.
  void set_objective(std::int64_t loss_chunk_size, std::function<void(Batch&)> complete) {
    loss_chunk_size_ = loss_chunk_size;
    complete_ = std::move(complete);
  }
  // Above 0: the model is called with its targets and computes the loss itself, from the logits of so many tokens of
  // each row at a time (--loss-chunk-size; ops::linear_cross_entropy).
  std::int64_t loss_chunk_size() const { return loss_chunk_size_; }

 private:
  const DataLoader* loader_ = nullptr;
  std::vector<std::int64_t> samples_;
  Batch batch_;
  std::int64_t loss_chunk_size_ = 0;
  std::function<void(Batch&)> complete_;
  bool taken_ = false;
};

// --- One forward

struct Loss {
  Loss(Tensor loss) : loss(std::move(loss)) {}  // NOLINT: a loss is mostly this alone
  Loss(Tensor loss, std::vector<std::pair<std::string, double>> reports)
      : loss(std::move(loss)), reports(std::move(reports)) {}

  Tensor loss;  // one element; the mean over the micro-batch
  // Further figures for metrics.jsonl, averaged over micro-batches and ranks with the weights of the loss; the same
  // names on every rank and step.
  std::vector<std::pair<std::string, double>> reports = {};
};

// Computes the loss from the model's output and takes ownership of it: backward may overwrite tensors that it releases.
using LossFunc = std::function<Loss(nn::Value output)>;

struct ForwardResult {
  nn::Value output;
  LossFunc loss_func;
};

using ForwardStep = std::function<ForwardResult(DataIterator&, nn::Module&)>;

}  // namespace loom::data
