#include "offload/swapped_tensor.h"

#include <cstring>
#include <functional>
#include <utility>

#include "engine/core/error.h"

namespace loom::offload {
namespace {

using device::StreamId;
using device::WorkKind;

std::shared_ptr<Storage> host_storage(device::Device& device, const Tensor& tensor, const std::string& block,
                                      bool pinned) {
  auto storage = std::make_shared<Storage>(Place::kHost, &device, tensor.nbytes(), device::MemCategory::kActivation,
                                           tensor.storage()->what(), pinned);
  try {
    storage->allocate();
  } catch (const DeviceError& error) {
    raise<DeviceError>(
        "swap of '{}': no host memory for {} bytes beside the {} bytes that this rank has there; swap fewer modules, "
        "or "
        "recompute them: {}",
        block, tensor.nbytes(), device.host_memory().stats().total_bytes, error.what());
  }
  return storage;
}

}  // namespace

SwappedTensor::SwappedTensor(const Tensor& tensor, const std::string& block, bool pinned)
    : device_(*tensor.storage()->device()),
      block_(block),
      on_device_(tensor),
      version_(tensor.storage()->version()),
      what_(tensor.storage()->what()),
      shape_(tensor.shape()),
      dtype_(tensor.dtype()),
      bytes_(tensor.nbytes()),
      host_(host_storage(device_, tensor, block, pinned)),
      host_bytes_(host_->data()) {
  device::Stream& stream = device_.stream(StreamId::kD2H);
  stream.wait(device_.stream(StreamId::kCompute).record());
  std::function<void()> run;
  if (host_bytes_ != nullptr) {
    run = [to = host_bytes_, from = tensor.raw(), bytes = static_cast<std::size_t>(bytes_),
           to_owner = host_->keep_alive(),
           from_owner = tensor.storage()->keep_alive()] { std::memcpy(to, from, bytes); };
  }
  stream.submit({"swap_d2h", block_, cost(WorkKind::kD2H), std::move(run)});
  left_ = stream.record();
  if (pinned) return;
  host_->set_ready(left_);  // a copy to pageable memory blocks the host
  host_->wait_ready();
}

device::Cost SwappedTensor::cost(WorkKind work) const {
  return {.read_bytes = bytes_,
          .written_bytes = bytes_,
          .unit = device::Unit::kHostLink,
          .pinned = host_->pinned(),
          .work = work};
}

void SwappedTensor::check_unwritten() const {
  const std::uint64_t version = on_device_.storage()->version();
  check_model(
      version == version_,
      "'{}' was saved for backward in '{}', which is swapped, at version {} and is at version {}: it was written "
      "to in between; write to a copy",
      what_, block_, version_, version);
}

void SwappedTensor::release() {
  if (!on_device_.defined() || host_ == nullptr) return;
  check_unwritten();
  on_device_ = {};
}

void SwappedTensor::fetch() {
  if (on_device_.defined()) return;
  on_device_ = Tensor::empty(shape_, dtype_, device::MemCategory::kActivation, what_);
  device::Stream& stream = device_.stream(StreamId::kH2D);
  stream.wait(device_.stream(StreamId::kCompute).record());
  std::function<void()> run;
  if (host_bytes_ != nullptr) {
    run = [to = on_device_.raw(), from = host_bytes_, bytes = static_cast<std::size_t>(bytes_),
           to_owner = on_device_.storage()->keep_alive(),
           from_owner = host_->keep_alive()] { std::memcpy(to, from, bytes); };
  }
  stream.submit({"swap_h2d", block_, cost(WorkKind::kH2D), std::move(run)});
  arrived_ = stream.record();
  host_ = nullptr;
}

Tensor SwappedTensor::get() {
  fetch();
  if (host_ != nullptr) check_unwritten();
  // Who gets the tensor may overwrite it: the copy to the host has to be done too.
  device_.stream(StreamId::kCompute).wait(std::exchange(host_ != nullptr ? left_ : arrived_, {}));
  return on_device_;
}

}  // namespace loom::offload
