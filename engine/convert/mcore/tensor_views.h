// Tensors composed of others without a copy: boxes of them below or beside one another, repeated, transposed. They are
// valid as long as the sources and the Views. Private to engine/convert.
//
// Memory   of a read: the requested box, twice if it is transposed.
// Threads  one thread at a time.
// Errors   the readers' errors; ConfigError for parts of two dtypes.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "engine/convert/output_tensor.h"

namespace loom::checkpoint {

// A matrix in a tensor: its last two dims, at one index of those before.
struct Matrix {
  const SourceTensor* from = nullptr;
  Offset offset;  // of its first element
  std::int64_t row_count = 0;
  std::int64_t columns = 0;

  Matrix rows(std::int64_t begin, std::int64_t count) const;
  Matrix cols(std::int64_t begin, std::int64_t count) const;
  TensorPart part() const;
};

// All of a tensor [rows, columns]; a vector counts as a column.
Matrix matrix_of(const SourceTensor& tensor);
// Matrix `index` of a tensor [E, rows, columns].
Matrix matrix_of(const SourceTensor& tensor, std::int64_t index);

// ConfigError if the parts of tensor `name` have two dtypes.
void check_one_dtype(const std::string& name, const std::vector<TensorPart>& parts);

class Views {
 public:
  // Rows of all parts, one part behind another; they have as many columns and one dtype.
  const SourceTensor& below(std::string name, std::vector<Matrix> parts);
  // Columns of all parts, one part behind another; they have as many rows and one dtype.
  const SourceTensor& beside(std::string name, std::vector<Matrix> parts);
  // One row `count` times.
  const SourceTensor& repeated(const Matrix& row, std::int64_t count);
  const SourceTensor& transposed(const Matrix& matrix);

 private:
  std::deque<SourceTensor> made_;
};

}  // namespace loom::checkpoint
