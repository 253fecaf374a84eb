#include "engine/convert/mcore/tensor_views.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"

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

void read_beside(const std::vector<Matrix>& parts, const Offset& offset, const Shape& box, Bytes to) {
  const DType dtype = parts.front().from->dtype;
  const std::size_t row_bytes = bytes_of(box[1], dtype);
  std::vector<std::byte> held;
  std::int64_t from = 0;
  for (const Matrix& part : parts) {
    const auto [first, columns] = overlap(offset[1], box[1], from, part.columns);
    if (columns > 0) {
      const std::size_t piece_bytes = bytes_of(columns, dtype);
      held.resize(piece_bytes * static_cast<std::size_t>(box[0]));
      read(part, offset[0], box[0], first - from, columns, held);
      std::byte* at = to.data() + bytes_of(first - offset[1], dtype);
      for (std::size_t row = 0; row < static_cast<std::size_t>(box[0]); ++row) {
        std::memcpy(at + row * row_bytes, held.data() + row * piece_bytes, piece_bytes);
      }
    }
    from += part.columns;
  }
}

void read_repeated(const Matrix& row, const Offset& offset, const Shape& box, Bytes to) {
  const std::size_t row_bytes = bytes_of(box[1], row.from->dtype);
  const Bytes first = to.first(row_bytes);
  read(row, 0, 1, offset[1], box[1], first);
  for (std::size_t at = row_bytes; at < to.size(); at += row_bytes) {
    std::memcpy(to.data() + at, first.data(), row_bytes);
  }
}

constexpr std::size_t kTile = 32;  // rows and columns that stay in the cache

// [columns, rows] from [rows, columns] elements of kBytes.
template <std::size_t kBytes>
void transpose(const std::byte* from, std::size_t rows, std::size_t columns, std::byte* to) {
  for (std::size_t top = 0; top < rows; top += kTile) {
    for (std::size_t left = 0; left < columns; left += kTile) {
      for (std::size_t r = top; r < std::min(top + kTile, rows); ++r) {
        for (std::size_t c = left; c < std::min(left + kTile, columns); ++c) {
          std::memcpy(to + (c * rows + r) * kBytes, from + (r * columns + c) * kBytes, kBytes);
        }
      }
    }
  }
}

void read_transposed(const Matrix& matrix, const Offset& offset, const Shape& box, Bytes to) {
  std::vector<std::byte> held(to.size());
  read(matrix, offset[1], box[1], offset[0], box[0], held);
  const auto rows = static_cast<std::size_t>(box[1]);
  const auto columns = static_cast<std::size_t>(box[0]);
  switch (element_bytes(matrix.from->dtype)) {
    case 1:
      return transpose<1>(held.data(), rows, columns, to.data());
    case 2:
      return transpose<2>(held.data(), rows, columns, to.data());
    case 4:
      return transpose<4>(held.data(), rows, columns, to.data());
    default:
      return transpose<8>(held.data(), rows, columns, to.data());
  }
}

void check_dtypes(const std::string& name, const SourceTensor& a, const SourceTensor& b) {
  if (a.dtype == b.dtype) return;
  config_error("'{}' of {} is {} and '{}' of {} is {}, but both are parts of '{}'; store them in one dtype",
               shown_text(a.name), a.file, loom::name(a.dtype), shown_text(b.name), b.file, loom::name(b.dtype),
               shown_text(name));
}

void check_one_dtype(const std::string& name, const std::vector<Matrix>& parts) {
  for (const Matrix& part : parts) check_dtypes(name, *parts.front().from, *part.from);
}

}  // namespace

void check_one_dtype(const std::string& name, const std::vector<TensorPart>& parts) {
  for (const TensorPart& part : parts) check_dtypes(name, *parts.front().from, *part.from);
}

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
  check_one_dtype(name, parts);
  std::int64_t rows = 0;
  for (const Matrix& part : parts) rows += part.row_count;
  const Matrix& first = parts.front();
  SourceTensor made{std::move(name), first.from->dtype, {rows, first.columns}, first.from->file, {}};
  made.read = [parts = std::move(parts)](const Offset& offset, const Shape& box, Bytes to) {
    read_below(parts, offset, box, to);
  };
  return made_.emplace_back(std::move(made));
}

const SourceTensor& Views::beside(std::string name, std::vector<Matrix> parts) {
  check_one_dtype(name, parts);
  std::int64_t columns = 0;
  for (const Matrix& part : parts) columns += part.columns;
  const Matrix& first = parts.front();
  SourceTensor made{std::move(name), first.from->dtype, {first.row_count, columns}, first.from->file, {}};
  made.read = [parts = std::move(parts)](const Offset& offset, const Shape& box, Bytes to) {
    read_beside(parts, offset, box, to);
  };
  return made_.emplace_back(std::move(made));
}

const SourceTensor& Views::repeated(const Matrix& row, std::int64_t count) {
  SourceTensor made{row.from->name, row.from->dtype, {count, row.columns}, row.from->file, {}};
  made.read = [row](const Offset& offset, const Shape& box, Bytes to) { read_repeated(row, offset, box, to); };
  return made_.emplace_back(std::move(made));
}

const SourceTensor& Views::transposed(const Matrix& matrix) {
  SourceTensor made{matrix.from->name, matrix.from->dtype, {matrix.columns, matrix.row_count}, matrix.from->file, {}};
  made.read = [matrix](const Offset& offset, const Shape& box, Bytes to) { read_transposed(matrix, offset, box, to); };
  return made_.emplace_back(std::move(made));
}

}  // namespace loom::checkpoint
