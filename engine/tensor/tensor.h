// Tensor: a dense, row-major array with a place in the autograd graph. Copies share it.
//
// Layout    contiguous: a shape and an offset into a storage, of whole reshapes and ranges of rows. Dry: any shape.
// Places    see Storage. Operators run on the device of the current rank; they read host tensors only where their
//           contract allows it.
// Autograd  a leaf with requires_grad collects `grad`; a result of a recorded operator refers to its node. detach()
//           shares the bytes only.
// Errors    ModelError on a wrong dtype or shape, InvariantError on a released storage.
// Threads   the rank's host thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/core/dtype.h"
#include "engine/core/shape.h"
#include "engine/device/memory.h"
#include "engine/tensor/storage.h"

namespace loom {

namespace autograd {
class Node;
struct Meta;
}  // namespace autograd

class Tensor {
 public:
  Tensor() = default;  // undefined
  Tensor(std::shared_ptr<Storage> storage, std::int64_t offset_elems, Shape shape, DType dtype);

  // On the current rank's device. empty(): contents undefined.
  static Tensor empty(const Shape& shape, DType dtype, device::MemCategory category = device::MemCategory::kActivation,
                      std::string what = "tensor");
  static Tensor zeros(const Shape& shape, DType dtype, device::MemCategory category = device::MemCategory::kActivation,
                      std::string what = "tensor");
  static Tensor full(const Shape& shape, DType dtype, double value);
  // A copy of host values, in their own dtype or converted.
  template <class T>
  static Tensor from(std::span<const T> values, const Shape& shape, DType dtype = dtype_of<T>) {
    return from_bytes(values.data(), static_cast<std::int64_t>(values.size()), dtype_of<T>, shape, dtype);
  }
  template <class T>
  static Tensor from(const std::vector<T>& values, const Shape& shape, DType dtype = dtype_of<T>) {
    return from(std::span<const T>(values), shape, dtype);
  }
  // Where `other` is - on its device, or in host memory with the same pinning; contents undefined. Precondition:
  // `other` is not meta.
  static Tensor empty_beside(const Tensor& other, const Shape& shape, DType dtype, device::MemCategory category,
                             std::string what);
  // Ordinary host memory, not accounted; contents undefined.
  static Tensor host(const Shape& shape, DType dtype, std::string what = "host tensor");
  // A shape without bytes.
  static Tensor meta(const Shape& shape, DType dtype, std::string what = "tensor");

  bool defined() const { return impl_ != nullptr; }
  const Shape& shape() const;
  DType dtype() const;
  std::int64_t numel() const { return shape().numel(); }
  std::int64_t nbytes() const { return numel() * element_bytes(dtype()); }
  const std::shared_ptr<Storage>& storage() const;
  std::int64_t offset_elems() const;
  bool is_meta() const { return storage()->place() == Place::kMeta; }
  // True when both are the same tensor object (not merely the same bytes).
  bool is_same(const Tensor& other) const { return impl_ == other.impl_; }
  const void* id() const { return impl_.get(); }
  // True when at most `handles` handles to this tensor exist and no other tensor shares its storage: its bytes may be
  // taken.
  bool is_owned_by(long handles) const;

  // The first element. Null in a dry run.
  void* raw() const;
  template <class T>
  T* data() const {
    check_dtype(dtype_of<T>);
    return static_cast<T*>(raw());
  }
  // Host copies of the values, converted to T.
  template <class T>
  std::vector<T> to_vector() const {
    std::vector<T> values(static_cast<std::size_t>(numel()));
    read_into(values.data(), dtype_of<T>);
    return values;
  }
  double item() const;  // of a tensor with one element

  // Same bytes, no graph.
  Tensor detach() const;
  // Same bytes with another shape or a range of rows [begin, begin + rows); no graph (ops::reshape records).
  Tensor view(const Shape& shape) const;
  Tensor rows(std::int64_t begin, std::int64_t rows) const;
  // Writes in place, unrecorded; bumps the version.
  void copy_from(const Tensor& other) const;
  void fill(double value) const;

  // --- autograd ---
  bool requires_grad() const;
  // On leaves only.
  const Tensor& set_requires_grad(bool on) const;
  bool is_leaf() const;
  // The collected gradient of a leaf; undefined when there is none.
  Tensor grad() const;
  void set_grad(Tensor grad) const;
  // Runs when the gradient of this tensor is complete, before it goes on; may return another gradient (undefined:
  // unchanged). Hooks of one tensor run in registration order. Precondition: requires_grad().
  using Hook = std::function<Tensor(const Tensor& grad)>;
  void register_hook(Hook hook) const;
  // On a leaf: runs after its gradient was added to grad().
  void register_post_accumulate_hook(std::function<void(const Tensor& leaf)> hook) const;

  autograd::Meta& meta_data() const;  // for the tape

 private:
  struct Impl;
  static Tensor from_bytes(const void* values, std::int64_t count, DType from, const Shape& shape, DType dtype);
  void check_dtype(DType expected) const;
  void read_into(void* values, DType dtype) const;

  std::shared_ptr<Impl> impl_;
};

}  // namespace loom
