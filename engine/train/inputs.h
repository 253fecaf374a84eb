// TrainingInputs: the user's files, read and checked against one another before anything is allocated.
//
// Checked   model shape, fsdp2_config.yaml against the model's tree and the number of ranks, weights against the shape,
//           data against the sequence length. Const afterwards: the rank threads of a process share one.
// Errors    ConfigError, the same on every rank.
#pragma once

#include <optional>

#include "engine/tensor/io/hf_weights.h"
#include "engine/train/arguments.h"
#include "engine/train/byte_dataset.h"
#include "models/decoder_config.h"
#include "sharding/apply.h"

namespace loom::train {

struct TrainingInputs {
  models::DecoderConfig model;
  std::optional<io::HfWeights> weights;      // --init-from-hf-path
  std::optional<sharding::Fsdp2Plan> fsdp2;  // --use-torch-fsdp2
  ByteData data;
};

TrainingInputs read_inputs(const TrainArguments& arguments);

}  // namespace loom::train
