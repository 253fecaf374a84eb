// The names of experts' weights in Hugging Face folders.
//
// Fused       one tensor per layer and kind, as the module holds it and transformers 5 writes it: "P.gate_up_proj"
//             [E,2I,H] and "P.down_proj" [E,H,I], P ending in "experts".
// Per expert  one tensor per expert and projection, as in published models: "P.K.gate_proj.weight" [I,H] (the first I
//             rows of expert K's matrix in gate_up_proj), "P.K.up_proj.weight" [I,H] (the others),
//             "P.K.down_proj.weight" [H,I].
// Mixtral     has other names for one tensor per expert: P ends in "block_sparse_moe.experts" instead of
//             "mlp.experts", the projections are w1, w3 and w2, and the router is "block_sparse_moe.gate.weight".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/shape.h"

namespace loom::models {

enum class ExpertSpelling : std::uint8_t { kPerExpert, kFused };

// One expert's projection: rows [row, row + shape[0]) of matrix `expert` of a fused parameter.
struct ExpertPart {
  std::string name;
  std::int64_t expert = 0;
  std::int64_t row = 0;
  Shape shape;
};

// A fused parameter as per-expert tensors, in order of their bytes; empty if `path` does not name one.
std::vector<ExpertPart> expert_parts(std::string_view path, const Shape& shape);

// Converts a name of per-expert weights, router included, from one family's spelling to the other's. Other names do
// not change.
std::string mixtral_spelling(std::string_view name);
std::string qwen_spelling(std::string_view name);

}  // namespace loom::models
