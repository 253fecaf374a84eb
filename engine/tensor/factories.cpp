#include "engine/core/checked.h"
#include "engine/core/error.h"
#include "engine/core/shape_text.h"
#include "engine/device/device.h"
#include "engine/kernels/fused.h"
#include "engine/tensor/tensor.h"

namespace loom {
namespace {

// The bytes that a process can address. Sums of a few thousand such tensors stay within 64 bits.
constexpr std::int64_t kMostBytes = std::int64_t{1} << 47;

Tensor make(Place place, device::Device* device, const Shape& shape, DType dtype, device::MemCategory category,
            std::string what, bool pinned = false) {
  const auto bytes = checked_multiply(shape.numel(), element_bytes(dtype));
  check_model(bytes && *bytes <= kMostBytes,
              "{} of shape {} and type {} takes more than 128 TiB, which no process can address; use smaller sizes",
              what, shape, name(dtype));
  return {std::make_shared<Storage>(place, device, *bytes, category, std::move(what), pinned), 0, shape, dtype};
}

}  // namespace

Tensor Tensor::empty(const Shape& shape, DType dtype, device::MemCategory category, std::string what) {
  Tensor tensor = make(Place::kDevice, &device::Device::current(), shape, dtype, category, std::move(what));
  tensor.storage()->allocate();
  return tensor;
}

Tensor Tensor::zeros(const Shape& shape, DType dtype, device::MemCategory category, std::string what) {
  Tensor tensor = empty(shape, dtype, category, std::move(what));
  tensor.fill(0);
  return tensor;
}

Tensor Tensor::full(const Shape& shape, DType dtype, double value) {
  Tensor tensor = empty(shape, dtype);
  tensor.fill(value);
  return tensor;
}

Tensor Tensor::empty_beside(const Tensor& other, const Shape& shape, DType dtype, device::MemCategory category,
                            std::string what) {
  const Storage& storage = *other.storage();
  require(!other.is_meta(), "memory beside '{}', which is on the meta device", storage.what());
  Tensor tensor = make(storage.place(), storage.device(), shape, dtype, category, std::move(what), storage.pinned());
  tensor.storage()->allocate();
  return tensor;
}

Tensor Tensor::host(const Shape& shape, DType dtype, std::string what) {
  Tensor tensor = make(Place::kHost, nullptr, shape, dtype, device::MemCategory::kActivation, std::move(what));
  tensor.storage()->allocate();
  return tensor;
}

Tensor Tensor::meta(const Shape& shape, DType dtype, std::string what) {
  return make(Place::kMeta, nullptr, shape, dtype, device::MemCategory::kActivation, std::move(what));
}

Tensor Tensor::from_bytes(const void* values, std::int64_t count, DType from, const Shape& shape, DType dtype) {
  check_model(count == shape.numel(), "{} values for a {} tensor; it takes {}", count, shape, shape.numel());
  Tensor tensor = empty(shape, dtype);
  if (void* to = tensor.raw()) kernels::cast(count, from, values, dtype, to);
  return tensor;
}

}  // namespace loom
