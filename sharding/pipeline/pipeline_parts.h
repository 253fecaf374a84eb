// PipelineParts: what a model declares about itself so that it can be cut into stages (attached to it). Paths are
// relative to it.
//
// A model that has it
//   - is called with inputs_embeds [B,S,H] by name in place of its first argument where it has no embedding;
//   - returns the hidden states where it has no output part;
//   - passes over layers, and parts, that are nn::Absent.
#pragma once

#include <string>
#include <vector>

namespace loom::sharding {

struct PipelineParts {
  std::vector<std::string> embedding;
  std::string layers;  // of a ModuleList
  std::vector<std::string> output;
};

}  // namespace loom::sharding
