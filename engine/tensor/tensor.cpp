#include "engine/tensor/tensor.h"

#include <algorithm>
#include <cstring>

#include "engine/core/error.h"
#include "engine/core/rank_context.h"
#include "engine/core/shape_text.h"
#include "engine/kernels/fused.h"
#include "engine/tensor/autograd.h"
#include "engine/tensor/dry_reads.h"

namespace loom {

struct Tensor::Impl {
  std::shared_ptr<Storage> storage;
  std::int64_t offset_elems;
  Shape shape;
  DType dtype;
  autograd::Meta meta;
};

Tensor::Tensor(std::shared_ptr<Storage> storage, std::int64_t offset_elems, Shape shape, DType dtype)
    : impl_(std::make_shared<Impl>(Impl{std::move(storage), offset_elems, std::move(shape), dtype, {}})) {
  const auto size = element_bytes(dtype);
  // Of a dry device the elements are never read: a view may repeat them (an expanded dimension).
  const bool is_dry = impl_->storage->device() != nullptr && impl_->storage->device()->memory().dry_run();
  require(is_dry || (offset_elems + numel()) * size <= impl_->storage->bytes(),
          "a {} tensor at element {} does not fit '{}' of {} bytes", impl_->shape, offset_elems, impl_->storage->what(),
          impl_->storage->bytes());
}

const Shape& Tensor::shape() const {
  check_model(defined(), "an undefined tensor was used; give it a value first");
  return impl_->shape;
}

DType Tensor::dtype() const {
  check_model(defined(), "an undefined tensor was used; give it a value first");
  return impl_->dtype;
}

const std::shared_ptr<Storage>& Tensor::storage() const {
  check_model(defined(), "an undefined tensor was used; give it a value first");
  return impl_->storage;
}

std::int64_t Tensor::offset_elems() const { return impl_->offset_elems; }

bool Tensor::is_owned_by(long handles) const { return impl_.use_count() <= handles && impl_->storage.use_count() == 1; }

void* Tensor::raw() const {
  std::byte* bytes = storage()->data();
  if (bytes == nullptr) return nullptr;
  return bytes + impl_->offset_elems * element_bytes(impl_->dtype);
}

void Tensor::check_dtype(DType expected) const {
  check_model(dtype() == expected, "'{}' is {}, read as {}; read it with its own dtype, or cast it", storage()->what(),
              name(dtype()), name(expected));
  if (storage()->place() != Place::kDevice || storage()->data() != nullptr) return;
  const DryReads& reads = RankContext::current().slot<DryReads>();
  if (reads.before) reads.before("data()", *this);
}

double Tensor::item() const {
  check_model(numel() == 1, "item() of a tensor with {} elements; to_vector() gives them all", numel());
  double value = 0;
  read_into(&value, DType::kF64);
  return value;
}

void Tensor::read_into(void* values, DType dtype) const {
  if (storage()->place() == Place::kDevice) {
    device::IssueLog& log = storage()->device()->log();
    log.add_host_wait(log.last_of(device::StreamId::kCompute));
  }
  const void* bytes = raw();
  if (bytes == nullptr) {  // dry run: no values exist
    const DryReads& reads = RankContext::current().slot<DryReads>();
    if (reads.before) reads.before(numel() == 1 ? "item()" : "to_vector()", *this);
    std::memset(values, 0, numel() * element_bytes(dtype));
    return;
  }
  kernels::cast(numel(), this->dtype(), bytes, dtype, values);
}

Tensor Tensor::detach() const { return {storage(), offset_elems(), shape(), dtype()}; }

Tensor Tensor::view(const Shape& shape) const {
  check_model(shape.numel() == numel(), "a {} tensor viewed as {}; {} elements are not {}", this->shape(), shape,
              numel(), shape.numel());
  return {storage(), offset_elems(), shape, dtype()};
}

Tensor Tensor::rows(std::int64_t begin, std::int64_t rows) const {
  check_model(shape().ndim() >= 1 && begin >= 0 && rows >= 0 && begin + rows <= shape()[0],
              "rows [{}, {}) of a {} tensor; they need to lie within dim 0", begin, begin + rows, shape());
  Shape part = shape();
  part[0] = rows;
  return {storage(), offset_elems() + begin * shape().row_elems(), part, dtype()};
}

void Tensor::copy_from(const Tensor& other) const {
  check_model(other.shape() == shape(), "copy of {} into {} ('{}'); one shape is needed", other.shape(), shape(),
              storage()->what());
  void* to = raw();
  // A dry run takes no values; tensors that it would read from a file are on the meta device.
  const void* from = to == nullptr && other.is_meta() ? nullptr : other.raw();
  if (to != nullptr && from != nullptr) kernels::cast(numel(), other.dtype(), from, dtype(), to);
  storage()->bump_version();
}

void Tensor::fill(double value) const {
  if (auto* to = static_cast<std::byte*>(raw()); to != nullptr && numel() > 0) {
    const auto bytes = static_cast<std::size_t>(nbytes());
    std::size_t written = element_bytes(dtype());
    kernels::cast(1, DType::kF64, &value, dtype(), to);
    for (; written < bytes; written = std::min(2 * written, bytes)) {
      std::memcpy(to + written, to, std::min(written, bytes - written));
    }
  }
  storage()->bump_version();
}

autograd::Meta& Tensor::meta_data() const {
  check_model(defined(), "an undefined tensor was used; give it a value first");
  return impl_->meta;
}

bool Tensor::requires_grad() const { return impl_ != nullptr && (impl_->meta.requires_grad || impl_->meta.node); }

bool Tensor::is_leaf() const { return meta_data().node == nullptr; }

const Tensor& Tensor::set_requires_grad(bool on) const {
  check_model(is_leaf(), "requires_grad is set on the result of an operator; set it on leaves, or detach() the result");
  check_model(!on || is_floating(dtype()), "a tensor of {} cannot require a gradient; only floating dtypes can",
              name(dtype()));
  meta_data().requires_grad = on;
  return *this;
}

Tensor Tensor::grad() const { return meta_data().grad; }
void Tensor::set_grad(Tensor grad) const { meta_data().grad = std::move(grad); }

void Tensor::register_hook(Hook hook) const {
  check_model(requires_grad(), "a hook on a tensor that requires no gradient; it would never run");
  autograd::Meta& meta = meta_data();
  if (!meta.node) {
    meta.leaf_hooks.push_back(std::move(hook));
    return;
  }
  auto& hooks = meta.node->hooks;
  if (hooks.size() <= static_cast<std::size_t>(meta.output)) hooks.resize(static_cast<std::size_t>(meta.output) + 1);
  hooks[static_cast<std::size_t>(meta.output)].push_back(std::move(hook));
}

void Tensor::register_post_accumulate_hook(std::function<void(const Tensor&)> hook) const {
  check_model(is_leaf() && requires_grad(),
              "a post-accumulate hook needs a leaf that requires grad; register_hook() takes results of operators");
  meta_data().post_accumulate_hooks.push_back(std::move(hook));
}

}  // namespace loom
