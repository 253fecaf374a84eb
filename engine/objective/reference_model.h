// The reference model of a preference loss: a second model of the rank, frozen, in shards as the trained one. Its
// weights are those that training starts from, or those of --ref-model. With --ref-logps-cache it is there only to
// compute what that file lacks, before the trained model has its bytes.
//
// Threads  the rank's host thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/comm/process_group.h"
#include "engine/data/options.h"
#include "engine/data/step.h"
#include "engine/formats/safetensors/hf_weights.h"
#include "engine/nn/module.h"
#include "engine/objective/reference_log_probs.h"

namespace loom::objective {

// How a rank makes its reference model. The trainer gives it; what it refers to outlives it.
struct ReferenceSource {
  // The program's model, on the meta device, without adapters.
  std::function<std::shared_ptr<nn::Module>()> provide;
  // Shards a model and gives it the reference weights. Collective.
  std::function<void(nn::Module&)> shard_and_fill;
  // Of a model that provide() gave. Null: they are drawn.
  std::function<const io::HfWeights*(const nn::Module&)> weights;
  bool rounds_to_bf16 = false;  // the weights that are read (--downcast-to-bf16)
  DType computes_in = DType::kF32;
};

// Frozen, with its bytes. Collective.
std::shared_ptr<nn::Module> make_reference_model(const ReferenceSource& source);

// What `model` gives the answers of a batch of pairs, a number a row; without gradients.
std::vector<double> log_probs_of(nn::Module& model, const data::Batch& batch);

// Which samples a rank computes of them.
struct ReferenceShare {
  std::int64_t micro_batch_size = 1;
  std::int64_t data_rank = 0;
  std::int64_t data_size = 1;
};

// The values of --ref-logps-cache FILE, and what there is to say of them, a line.
struct ProvidedLogProbs {
  ReferenceLogProbs values;
  std::string said;
};
// Of the file, where it is there and fits; else computed by a reference model that is made for it, and written.
// ConfigError on every rank where the samples have no numbers. Collective.
ProvidedLogProbs provide_reference_log_probs(const std::filesystem::path& file, const ReferenceSource& source,
                                             const data::DataOptions& data,
                                             const std::optional<data::NumberedSamples>& samples,
                                             const ReferenceShare& share, comm::World& world);

}  // namespace loom::objective
