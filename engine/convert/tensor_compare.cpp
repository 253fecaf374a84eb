#include "engine/convert/tensor_compare.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "engine/convert/element_convert.h"
#include "engine/core/error.h"

namespace loom::checkpoint {
namespace {

// The place of element `index` of a box, in the whole tensor.
Offset place_of(std::int64_t index, const Offset& offset, const Shape& box) {
  Offset place = offset;
  for (int d = box.ndim() - 1; d >= 0; --d) {
    place[static_cast<std::size_t>(d)] += index % box[d];
    index /= box[d];
  }
  return place;
}

class Comparison {
 public:
  Comparison(const SourceTensor& a, const SourceTensor& b) : a_(a), b_(b) {}

  void add(const Offset& offset, const Shape& box) {
    const auto count = static_cast<std::size_t>(box.numel());
    const auto size_a = static_cast<std::size_t>(element_bytes(a_.dtype));
    const auto size_b = static_cast<std::size_t>(element_bytes(b_.dtype));
    bytes_a_.resize(count * size_a);
    bytes_b_.resize(count * size_b);
    a_.read(offset, box, bytes_a_);
    b_.read(offset, box, bytes_b_);
    if (a_.dtype == b_.dtype && std::memcmp(bytes_a_.data(), bytes_b_.data(), bytes_a_.size()) == 0) return;
    for (std::size_t i = 0; i < count; ++i) {
      add_element(bytes_a_.data() + i * size_a, bytes_b_.data() + i * size_b, offset, box, i);
    }
  }

  const Difference& found() const { return found_; }

 private:
  void add_element(const std::byte* a, const std::byte* b, const Offset& offset, const Shape& box, std::size_t i) {
    if (a_.dtype == b_.dtype && std::memcmp(a, b, static_cast<std::size_t>(element_bytes(a_.dtype))) == 0) return;
    const double value_a = element_at(a_.dtype, a);
    const double value_b = element_at(b_.dtype, b);
    if (a_.dtype != b_.dtype && (value_a == value_b || (std::isnan(value_a) && std::isnan(value_b)))) return;
    if (found_.elements == 0) {
      found_.first = place_of(static_cast<std::int64_t>(i), offset, box);
      found_.first_a = value_a;
      found_.first_b = value_b;
    }
    ++found_.elements;
    const double apart = std::abs(value_a - value_b);
    if (std::isnan(apart) || apart > found_.largest) found_.largest = std::isnan(found_.largest) ? NAN : apart;
  }

  const SourceTensor& a_;
  const SourceTensor& b_;
  std::vector<std::byte> bytes_a_;
  std::vector<std::byte> bytes_b_;
  Difference found_;
};

}  // namespace

Difference compare(const SourceTensor& a, const SourceTensor& b) {
  require(a.shape == b.shape, "'{}' {} against '{}' {}", a.name, to_string(a.shape), b.name, to_string(b.shape));
  Comparison comparison(a, b);
  const std::int64_t element = std::max(element_bytes(a.dtype), element_bytes(b.dtype));
  for_each_piece(Offset(static_cast<std::size_t>(a.shape.ndim()), 0), a.shape, kPieceBytes / element,
                 [&](const Offset& offset, const Shape& box) { comparison.add(offset, box); });
  return comparison.found();
}

void check_tied(const SourceTensor& head, const SourceTensor& embedding, const std::filesystem::path& folder,
                const std::filesystem::path& config) {
  if (head.dtype == embedding.dtype && head.shape == embedding.shape && compare(head, embedding).elements == 0) return;
  config_error(
      "{}: '{}' and '{}' are one tensor by tie_word_embeddings of {}, but have different values; set it to false there, "
      "if the model was trained untied",
      folder.string(), head.name, embedding.name, config.string());
}

}  // namespace loom::checkpoint
