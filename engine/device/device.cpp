#include "engine/device/device.h"

#include "engine/core/error.h"

namespace loom::device {
namespace {

struct DeviceSlot {
  std::unique_ptr<Device> device;
};

}  // namespace

Device::Device(const DeviceOptions& options, RankContext* context)
    : profile_(options.profile),
      memory_(options.profile.memory_bytes, options.arena ? options.arena : Arena::create(), options.dry_run,
              options.allocator, options.compared, options.rounding_bytes),
      host_memory_(options.host_allocator ? options.host_allocator : HostAllocator::ordinary(), options.dry_run),
      log_(&memory_),
      executor_(options.executor),
      context_(context) {}

void Device::synchronize() {
  for (auto& stream : streams_) {
    if (stream != nullptr) stream->synchronize();
  }
}

Device& Device::install(RankContext& context, const DeviceOptions& options) {
  auto& slot = context.slot<DeviceSlot>();
  // The streams' threads look up slots until they have ended.
  if (slot.device == nullptr) context.at_end([&slot] { slot.device.reset(); });
  slot.device = std::make_unique<Device>(options, &context);
  return *slot.device;
}

Device* Device::current_or_null() {
  RankContext* context = RankContext::current_or_null();
  return context == nullptr ? nullptr : context->slot<DeviceSlot>().device.get();
}

Device& Device::current() {
  auto& slot = RankContext::current().slot<DeviceSlot>();
  require(slot.device != nullptr, "no device is installed for this rank; call Device::install first");
  return *slot.device;
}

}  // namespace loom::device
