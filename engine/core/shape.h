// Shape: the sizes of a tensor, outermost first; row-major. A scalar has no dims and one element.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

namespace loom {

class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<std::int64_t> sizes) : sizes_(sizes) {}
  explicit Shape(std::vector<std::int64_t> sizes) : sizes_(std::move(sizes)) {}

  int ndim() const { return static_cast<int>(sizes_.size()); }
  // Size of dim d; negative d counts from the end.
  std::int64_t operator[](int d) const { return sizes_[static_cast<std::size_t>(d < 0 ? d + ndim() : d)]; }
  std::int64_t& operator[](int d) { return sizes_[static_cast<std::size_t>(d < 0 ? d + ndim() : d)]; }
  std::int64_t numel() const;
  // Elements of one row: the product of all sizes but the first; 1 for ndim <= 1.
  std::int64_t row_elems() const;
  const std::vector<std::int64_t>& sizes() const { return sizes_; }
  bool operator==(const Shape&) const = default;

  // Names of other libraries, each with two meanings: the compiler says which of the names above to use.
  template <bool kUse = false>
  int size() const {
    static_assert(kUse, "a Shape has no size(): use shape.ndim() for the dims, shape.numel() for the elements");
    return ndim();
  }
  template <bool kUse = false>
  int rank() const {
    static_assert(kUse, "a Shape has no rank(), which is a process here: use shape.ndim() for the dims");
    return ndim();
  }

 private:
  std::vector<std::int64_t> sizes_;
};

// "[2, 3]"
std::string to_string(const Shape& shape);

}  // namespace loom
