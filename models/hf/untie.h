// --untie-embeddings-and-output-weights: an output layer that holds the embedding's parameter gets one of its own.
//
// FSDP2 asks for it where the two are in different groups. Both parameters start with the same values when weights are
// loaded; fresh ones are drawn for each.
#pragma once

#include <string>
#include <vector>

#include "engine/formats/safetensors/hf_weights.h"
#include "engine/nn/module.h"

namespace loom::models {

struct Untied {
  std::string path;       // of the slot that has a parameter of its own now
  std::string tied_path;  // of the slot it was tied to
};

// Of ties with a slot of an Embedding; others stay. Precondition: parameters are on the meta device.
std::vector<Untied> untie_embeddings_and_output_weights(nn::Module& model);

// Lets `weights` give the tensor of the tied slot for the other one too, unless they hold one for each.
void share_stored(io::HfWeights& weights, const Untied& untied);

}  // namespace loom::models
