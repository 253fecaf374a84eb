// Compares two checkpoints tensor by tensor, whatever their formats and shards.
//
// Names    unchanged; if one is a Hugging Face folder or safetensors file and the other a checkpoint with tensors
//          below "model.", only these, without "model.".
// Values   of two checkpoints of torch.distributed.checkpoint are compared too.
// Reading  in pieces; checksums are verified as everywhere.
// Threads  one thread at a time.
// Errors   the readers' errors.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/convert/inspect/opened_checkpoint.h"
#include "engine/convert/tensor_compare.h"

namespace loom::checkpoint {

struct TensorDifference {
  std::string name;
  DType dtype_a = DType::kF32;
  DType dtype_b = DType::kF32;
  Shape shape_a;
  Shape shape_b;
  std::optional<Difference> elements;  // if the shapes are the same
};

struct ValueDifference {
  std::string name;
  std::string a;  // as Python's repr(); empty if absent
  std::string b;
};

struct CheckpointDifference {
  std::vector<std::string> only_a;
  std::vector<std::string> only_b;
  std::vector<TensorDifference> tensors;
  std::vector<ValueDifference> values;
  std::int64_t equal = 0;  // tensors

  bool empty() const { return only_a.empty() && only_b.empty() && tensors.empty() && values.empty(); }
};

CheckpointDifference compare(OpenedCheckpoint& a, OpenedCheckpoint& b, const std::string& filter = {});

std::string to_text(const CheckpointDifference& difference);
nlohmann::ordered_json to_json(const CheckpointDifference& difference);

}  // namespace loom::checkpoint
