#include "engine/dist/collectives.h"

#include <cstring>

namespace loom::dist {

void reduce_in_place(const Tensor& x, comm::ReduceOp op, const Channel& channel, const std::string& tag) {
  const std::int64_t received = 2 * (channel.size() - 1) * x.nbytes() / channel.size();
  communicate("all_reduce", device::CollectiveKind::kAllReduce, x.nbytes(), received, channel, tag,
              [&] { channel.ranks->all_reduce(channel.lane, x.raw(), x.numel(), x.dtype(), op, tag); });
}

Tensor reduced(const Tensor& x, comm::ReduceOp op, const Channel& channel, const std::string& tag) {
  const Tensor y = Tensor::empty(x.shape(), x.dtype());
  const device::Cost copy{.read_bytes = x.nbytes(), .written_bytes = y.nbytes(), .unit = device::Unit::kCopy};
  device::Device::current().launch("copy", copy,
                                   [&] { std::memcpy(y.raw(), x.raw(), static_cast<std::size_t>(x.nbytes())); });
  reduce_in_place(y, op, channel, tag);
  return y;
}

}  // namespace loom::dist
