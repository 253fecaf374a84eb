#include <atomic>
#include <cstdlib>

#include "engine/core/error.h"
#include "engine/core/rounding.h"
#include "engine/device/arena.h"

namespace loom::device {
namespace {

constexpr std::size_t kAlign = 64;

class HeapArena final : public Arena {
 public:
  std::shared_ptr<std::byte> take(std::size_t bytes) override {
    const std::size_t size = bytes == 0 ? kAlign : round_up(bytes, kAlign);
    void* memory = std::aligned_alloc(kAlign, size);
    if (memory == nullptr)
      raise<DeviceError>(
          "the machine has no {} bytes left for the memory of a device; use fewer ranks a machine, a "
          "smaller batch or a smaller model",
          size);
    system_bytes_ += size;
    return {static_cast<std::byte*>(memory), [](std::byte* piece) { std::free(piece); }};
  }

  std::size_t system_bytes() const override { return system_bytes_; }

 private:
  std::atomic<std::size_t> system_bytes_ = 0;
};

}  // namespace

std::shared_ptr<Arena> Arena::create() { return std::make_shared<HeapArena>(); }

}  // namespace loom::device
