// SwappedTensor: one saved tensor on its way to the host and back. Private to offload.
//
// States   leaving (made: the copy to the host is issued, the device's bytes are held) -> out (release) -> back (fetch:
//          new bytes, the copy to the device is issued).
// Threads  the rank's host thread.
#pragma once

#include <cstdint>
#include <string>

#include "engine/device/device.h"
#include "engine/tensor/tensor.h"

namespace loom::offload {

class SwappedTensor {
 public:
  // Issues the copy to the host. `block` outlives it.
  SwappedTensor(const Tensor& tensor, const std::string& block, bool pinned);

  // The copy to the host is done at this event.
  const device::Event& left() const { return left_; }
  // Frees the device's bytes; nothing to do unless leaving. Precondition: compute has waited for left().
  void release();
  // Issues the copy to the device; nothing to do unless out.
  void fetch();
  // The tensor on the device; the compute stream has waited for its bytes.
  Tensor get();

 private:
  void check_unwritten() const;
  device::Cost cost(device::WorkKind work) const;

  device::Device& device_;
  const std::string& block_;
  Tensor on_device_;  // leaving and back
  std::uint64_t version_;
  const std::string what_;
  const Shape shape_;
  const DType dtype_;
  const std::int64_t bytes_;
  std::shared_ptr<Storage> host_;  // leaving and out
  std::byte* host_bytes_ = nullptr;
  device::Event left_;
  device::Event arrived_;  // back; default: done
};

}  // namespace loom::offload
