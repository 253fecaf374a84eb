// The grid a matrix product is cut into: a function of the shape alone. Private to engine/kernels.
#pragma once

#include <algorithm>
#include <cstdint>

namespace loom::kernels {

// One dimension cut into equal parts of about `part` that are multiples of `multiple` (the last may be shorter).
// kEven: an even number of parts unless the dimension is small, so that two threads share them evenly.
enum class Parts { kAny, kEven };

class Cut {
 public:
  Cut(std::int64_t size, std::int64_t part, std::int64_t multiple, Parts which = Parts::kAny) : size_(size) {
    std::int64_t parts = std::max<std::int64_t>(1, (size + part / 2) / part);
    if (which == Parts::kEven && size >= kEvenFrom) parts += parts % 2;
    part_ = std::max(multiple, ((size + parts - 1) / parts + multiple - 1) / multiple * multiple);
  }
  std::int64_t parts() const { return (size_ + part_ - 1) / part_; }
  std::int64_t begin(std::int64_t i) const { return i * part_; }
  std::int64_t length(std::int64_t i) const { return std::min(part_, size_ - begin(i)); }

 private:
  static constexpr std::int64_t kEvenFrom = 384;

  std::int64_t size_;
  std::int64_t part_;
};

}  // namespace loom::kernels
