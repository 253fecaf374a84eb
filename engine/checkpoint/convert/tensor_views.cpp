#include "engine/checkpoint/convert/tensor_views.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/core/error.h"

namespace loom::checkpoint {
namespace {

using Bytes = std::span<std::byte>;

// Elements of a matrix's box, row-major.
void read(const Matrix& matrix, std::int64_t row, std::int64_t rows, std::int64_t column, std::int64_t columns,
          Bytes to) {
  const TensorPart part = matrix.rows(row, rows).cols(column, columns).part();
  part.from->read(part.offset, part.shape, to);
}

std::size_t bytes_of(std::int64_t elements, DType dtype) {
  return static_cast<std::size_t>(elements) * static_cast<std::size_t>(element_bytes(dtype));
}

// The part of [begin, begin + count) that is in [from, from + size): its begin, and how many.
std::pair<std::int64_t, std::int64_t> overlap(std::int64_t begin, std::int64_t count, std::int64_t from,
                                              std::int64_t size) {
  const std::int64_t first = std::max(begin, from);
  return {first, std::min(begin + count, from + size) - first};
}

void read_below(const std::vector<Matrix>& parts, const Offset& offset, const Shape& box, Bytes to) {
  const std::size_t row_bytes = bytes_of(box[1], parts.front().from->dtype);
  std::int64_t from = 0;
  for (const Matrix& part : parts) {
    const auto [first, rows] = overlap(offset[0], box[0], from, part.row_count);
    if (rows > 0) {
      const Bytes piece = to.subspan(static_cast<std::size_t>(first - offset[0]) * row_bytes,
                                     static_cast<std::size_t>(rows) * row_bytes);
      read(part, first - from, rows, offset[1], box[1], piece);
    }
    from += part.row_count;
  }
}

void read_transposed(const Matrix& matrix, const Offset& offset, const Shape& box, Bytes to) {
  std::vector<std::byte> held(to.size());
  read(matrix, offset[1], box[1], offset[0], box[0], held);
  const auto size = static_cast<std::size_t>(element_bytes(matrix.from->dtype));
  const auto rows = static_cast<std::size_t>(box[0]);
  const auto columns = static_cast<std::size_t>(box[1]);
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t c = 0; c < columns; ++c) {
      std::memcpy(to.data() + (r * columns + c) * size, held.data() + (c * rows + r) * size, size);
    }
  }
}

}  // namespace

Matrix Matrix::rows(std::int64_t begin, std::int64_t count) const {
  require(begin >= 0 && count >= 0 && begin + count <= row_count, "rows {} + {} of {}", begin, count, row_count);
  Matrix matrix = *this;
  const auto dim = static_cast<std::size_t>(std::max(0, from->shape.ndim() - 2));
  matrix.offset[dim] += begin;
  matrix.row_count = count;
  return matrix;
}

Matrix Matrix::cols(std::int64_t begin, std::int64_t count) const {
  require(begin >= 0 && count >= 0 && begin + count <= columns, "columns {} + {} of {}", begin, count, columns);
  Matrix matrix = *this;
  if (from->shape.ndim() > 1) matrix.offset.back() += begin;
  matrix.columns = count;
  return matrix;
}

TensorPart Matrix::part() const {
  if (from->shape.ndim() == 1) return {from, offset, {row_count}};
  if (from->shape.ndim() == 2) return {from, offset, {row_count, columns}};
  return {from, offset, {1, row_count, columns}};
}

Matrix matrix_of(const SourceTensor& tensor) {
  require(tensor.shape.ndim() == 1 || tensor.shape.ndim() == 2, "'{}' {} as a matrix", tensor.name,
          to_string(tensor.shape));
  if (tensor.shape.ndim() == 1) return {&tensor, {0}, tensor.shape[0], 1};
  return {&tensor, {0, 0}, tensor.shape[0], tensor.shape[1]};
}

Matrix matrix_of(const SourceTensor& tensor, std::int64_t index) {
  require(tensor.shape.ndim() == 3, "'{}' {} as matrices", tensor.name, to_string(tensor.shape));
  return {&tensor, {index, 0, 0}, tensor.shape[1], tensor.shape[2]};
}

const SourceTensor& Views::below(std::string name, std::vector<Matrix> parts) {
  std::int64_t rows = 0;
  for (const Matrix& part : parts) rows += part.row_count;
  const Matrix& first = parts.front();
  SourceTensor made{std::move(name), first.from->dtype, {rows, first.columns}, first.from->file, {}};
  made.read = [parts = std::move(parts)](const Offset& offset, const Shape& box, Bytes to) {
    read_below(parts, offset, box, to);
  };
  return made_.emplace_back(std::move(made));
}

const SourceTensor& Views::transposed(const Matrix& matrix) {
  SourceTensor made{matrix.from->name, matrix.from->dtype, {matrix.columns, matrix.row_count}, matrix.from->file, {}};
  made.read = [matrix](const Offset& offset, const Shape& box, Bytes to) { read_transposed(matrix, offset, box, to); };
  return made_.emplace_back(std::move(made));
}

}  // namespace loom::checkpoint
