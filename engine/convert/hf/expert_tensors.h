// Converts the names of experts to the names of another list of tensors.
//
// Life     the result reads from the sources of `list`.
//
// Private to engine/convert.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "engine/convert/output_tensor.h"
#include "engine/convert/tensor_source.h"

namespace loom::checkpoint {

// `list`, with Mixtral's published names replaced by the names of Qwen's families, and those of Qwen2-VL and of
// OpenGVLab's InternVL by the paths of their models: the only ones the converters know. A tensor with the rows of
// several parameters becomes these. ConfigError for one whose rows cannot be divided among them.
TensorList with_qwen_spelling(const TensorList& list);

// `list`, with a tensor of all experts split if `like` names them one by one (models/decoder/expert_weights.h).
TensorList with_experts_as_in(const TensorList& list, const TensorList& like);

// Experts that a list names one by one ("P.experts.K.gate_proj.weight"), as the models' tensors of all experts
// ("P.experts.gate_up_proj"). Only sets that are complete, of one dtype, and of matrices of one shape are joined.
struct FusedExperts {
  std::vector<OutputTensor> tensors;  // their parts are tensors of the list
  std::set<std::string> taken;        // the names of the tensors they consist of
};
FusedExperts fused_experts(const TensorList& list);

}  // namespace loom::checkpoint
