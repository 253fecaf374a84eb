// Collectives of the compute stream, unrecorded: the operators on several ranks consist of them. Private to
// engine/dist.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "engine/device/device.h"
#include "engine/dist/channel.h"
#include "engine/tensor/tensor.h"

namespace loom::dist {

// A collective of `bytes` (device::Collective) of which this rank receives `received`. In a dry run `run` does not run.
template <class Run>
void communicate(std::string_view name, device::CollectiveKind kind, std::int64_t bytes, std::int64_t received,
                 const Channel& channel, const std::string& tag, const Run& run) {
  device::Device& device = device::Device::current();
  device.stream(device::StreamId::kCompute)
      .submit({name,
               tag,
               {.link_bytes = received, .unit = device::Unit::kLink},
               device.dry_run() ? std::function<void()>() : std::function<void()>(run),
               device::Collective{kind, bytes, &channel.ranks->ranks(), channel.ranks->name()}});
}

// x = op over the ranks' x.
void reduce_in_place(const Tensor& x, comm::ReduceOp op, const Channel& channel, const std::string& tag);
// The same in a new tensor.
Tensor reduced(const Tensor& x, comm::ReduceOp op, const Channel& channel, const std::string& tag);

}  // namespace loom::dist
