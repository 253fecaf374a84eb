// MatrixCutter: which part of each parameter a rank of tensor parallelism keeps. Private to sharding.
#pragma once

#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/comm/mesh.h"
#include "engine/nn/layers.h"
#include "sharding/cut_parameter.h"
#include "sharding/tensor/share_matrices.h"

namespace loom::sharding {

// The layer at `path`. ConfigError, at `where`, for another module.
nn::MatrixLayer& matrix_at(nn::Module& model, const std::string& path, const std::string& where);
std::int64_t outputs_of(nn::MatrixLayer& layer);
std::int64_t inputs_of(nn::MatrixLayer& layer);

// Whole pieces of a layer's outputs: heads, where it belongs to an attention.
std::int64_t units_of(nn::Module& model, const std::string& path, const SharedMatrices& matrices);
int joined_matrices(const SharedMatrices& matrices, const std::string& path);

class MatrixCutter {
 public:
  MatrixCutter(nn::Module& model, const SharedMatrices& matrices, const comm::Axis& axis);

  void cut_outputs(const std::string& path);
  void cut_inputs(const std::string& path);
  // Rows of a table of the vocabulary, as torch.chunk: all ranks have as many, the last one fewer.
  void cut_rows(nn::ParamSlot& table);

  // Of all parameters: how many copies there are, and over which ranks gradients are summed. `partial`: modules that
  // see a part of the work; `apart`: modules whose parameters have ranks of their own.
  TensorShares shares(const std::vector<std::string>& partial, const std::vector<std::string>& apart);

 private:
  // A rank's part of a dim.
  struct Piece {
    std::int64_t begin = 0;
    std::int64_t count = 0;
    int copies = 1;
  };
  Piece piece_of(std::int64_t units, std::int64_t unit) const;
  void cut(nn::ParamSlot& slot, int dim, const Piece& piece, int joined = 1);

  nn::Module& model_;
  const NamedSlots slots_;
  const SharedMatrices& matrices_;
  const comm::Axis& axis_;
  std::unordered_map<const void*, TensorShares::Share> cut_;  // by the identity of what is left
  std::set<const nn::ParamSlot*> row_biases_;
};

}  // namespace loom::sharding
