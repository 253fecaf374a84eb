// --untie-embeddings-and-output-weights: an output layer that holds the embedding's parameter gets its own one.
//
// FSDP2 requires it if the two are in different groups. Both parameters start with the same values when weights are
// loaded; otherwise each gets its own random values.
#pragma once

#include <string>
#include <vector>

#include "engine/formats/safetensors/hf_weights.h"
#include "engine/nn/module.h"

namespace loom::models {

struct Untied {
  std::string path;       // the slot that now has its own parameter
  std::string tied_path;  // the slot that it was tied to
};

// Unties slots tied to a slot of an Embedding; other ties stay. Precondition: parameters are on the meta device.
std::vector<Untied> untie_embeddings_and_output_weights(nn::Module& model);

// Makes `weights` return the tensor of the tied slot for the other one too, unless they hold one for each.
void share_stored(io::HfWeights& weights, const Untied& untied);

}  // namespace loom::models
