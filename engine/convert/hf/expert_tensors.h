// Experts in the spelling of another list of tensors.
//
// Life     the result reads from what `list` was made of.
//
// Private to engine/convert.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "engine/convert/output_tensor.h"
#include "engine/convert/tensor_source.h"

namespace loom::checkpoint {

// `list`, where Mixtral's published names are those of Qwen's families: the converters know these alone.
TensorList with_qwen_spelling(const TensorList& list);

// `list`, where a tensor of all experts that `like` names one by one is taken apart (models/decoder/expert_weights.h).
TensorList with_experts_as_in(const TensorList& list, const TensorList& like);

// Experts that a list names one by one ("P.experts.K.gate_proj.weight"), as the tensors of all of them that models have
// ("P.experts.gate_up_proj"). Only sets that are whole, of one dtype, and of matrices of one shape are put together.
struct FusedExperts {
  std::vector<OutputTensor> tensors;  // their parts are tensors of the list
  std::set<std::string> taken;        // the names that they are made of
};
FusedExperts fused_experts(const TensorList& list);

}  // namespace loom::checkpoint
