// The reference model of a preference loss: a second model of the rank, frozen, sharded like the trained one. Its
// weights are the weights that training starts from, or --ref-model. With --ref-logps-cache it exists only to
// compute what the file lacks, before the trained model has its bytes.
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

// How a rank makes its reference model. The trainer provides it; its referents outlive it.
struct ReferenceSource {
  // The program's model, on the meta device, without adapters.
  std::function<std::shared_ptr<nn::Module>()> provide;
  // Shards a model and loads the reference weights. Collective.
  std::function<void(nn::Module&)> shard_and_fill;
  // The weights for a model of provide(). Null: they are random.
  std::function<const io::HfWeights*(const nn::Module&)> weights;
  bool rounds_to_bf16 = false;  // the weights (--downcast-to-bf16, --params-dtype bf16)
  DType computes_in = DType::kF32;
};

// The model, frozen, with its bytes. Collective.
std::shared_ptr<nn::Module> make_reference_model(const ReferenceSource& source);

// The log-probabilities of a batch of pairs under `model`, one number per row; without gradients.
std::vector<double> log_probs_of(nn::Module& model, const data::Batch& batch);

// The samples that a rank computes.
struct ReferenceShare {
  std::int64_t micro_batch_size = 1;
  std::int64_t data_rank = 0;
  std::int64_t data_size = 1;
};

// The values of --ref-logps-cache FILE, and a line about them.
struct ProvidedLogProbs {
  ReferenceLogProbs values;
  std::string said;
};
// Reads the file if it exists and fits; else a reference model is made to compute the values, and they are written.
// ConfigError on every rank if the samples have no numbers. Collective.
ProvidedLogProbs provide_reference_log_probs(const std::filesystem::path& file, const ReferenceSource& source,
                                             const data::DataOptions& data,
                                             const std::optional<data::NumberedSamples>& samples,
                                             const ReferenceShare& share, comm::World& world);

}  // namespace loom::objective
