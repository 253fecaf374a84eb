#include "engine/dist/operators.h"

#include <algorithm>
#include <cstring>
#include <fmt/ranges.h>
#include <functional>
#include <numeric>
#include <string_view>

#include "engine/core/error.h"
#include "engine/device/device.h"
#include "engine/tensor/autograd.h"
#include "engine/tensor/ops/general.h"

namespace loom::dist {
namespace {

using autograd::Grads;
using autograd::Needs;
using autograd::Saved;
using device::CollectiveKind;

// A collective of `bytes` (device::Collective) of which this rank receives `received`.
template <class Run>
void communicate(std::string_view name, CollectiveKind kind, std::int64_t bytes, std::int64_t received,
                 const Channel& channel, const std::string& tag, const Run& run) {
  device::Device& device = device::Device::current();
  device.stream(device::StreamId::kCompute)
      .submit({name,
               tag,
               {.link_bytes = received, .unit = device::Unit::kLink},
               device.dry_run() ? std::function<void()>() : std::function<void()>(run),
               device::Collective{kind, bytes, &channel.ranks->ranks(), channel.ranks->name()}});
}

std::int64_t sum_of(const std::vector<std::int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

std::byte* at(const Tensor& x, std::int64_t bytes) { return static_cast<std::byte*>(x.raw()) + bytes; }

Shape with_size(const Shape& shape, int dim, std::int64_t size) {
  Shape result = shape;
  result[dim] = size;
  return result;
}

// The elements of the dims [begin, end).
std::int64_t elems_of(const Shape& shape, int begin, int end) {
  std::int64_t elems = 1;
  for (int dim = begin; dim < end; ++dim) elems *= shape[dim];
  return elems;
}

int checked_dim(std::string_view op, const Tensor& x, int dim) {
  const int dims = x.shape().ndim();
  check_model(dim >= -dims && dim < dims, "{}: dim {} of {}; it has dims 0 to {}", op, dim, to_string(x.shape()),
              dims - 1);
  return dim < 0 ? dim + dims : dim;
}

void check_divides(std::string_view op, const Tensor& x, int dim, int ranks) {
  check_model(x.shape()[dim] % ranks == 0, "{}: dim {} of {} among {} ranks; use a size that {} divides", op, dim,
              to_string(x.shape()), ranks, ranks);
}

void check_rows(const Tensor& x, const RowCounts& rows, int ranks) {
  const auto entries = static_cast<std::size_t>(ranks);
  check_model(rows.sent.size() == entries && rows.received.size() == entries,
              "all_to_all: {} counts of rows to send and {} to receive among {} ranks; give one a rank each",
              rows.sent.size(), rows.received.size(), ranks);
  const auto is_count = [](std::int64_t count) { return count >= 0; };
  check_model(std::ranges::all_of(rows.sent, is_count) && std::ranges::all_of(rows.received, is_count),
              "all_to_all: sends [{}] and receives [{}] rows; counts are 0 and more", fmt::join(rows.sent, ", "),
              fmt::join(rows.received, ", "));
  check_model(x.shape().ndim() >= 1 && sum_of(rows.sent) == x.shape()[0],
              "all_to_all: sends [{}] rows of {}; the counts need the rows as their sum", fmt::join(rows.sent, ", "),
              to_string(x.shape()));
}

// --- What moves, unrecorded

Tensor exchanged(const Tensor& x, const RowCounts& rows, const Channel& channel, const std::string& tag) {
  const Tensor y = Tensor::empty(with_size(x.shape(), 0, sum_of(rows.received)), x.dtype());
  const std::int64_t row_bytes = x.shape().row_elems() * element_bytes(x.dtype());
  const auto own = static_cast<std::size_t>(channel.rank());
  const std::int64_t others = channel.size() - 1;
  const std::int64_t sent = x.nbytes() - rows.sent[own] * row_bytes;
  const std::int64_t received = y.nbytes() - rows.received[own] * row_bytes;
  const std::int64_t bytes = std::max(sent, received) * (others + 1) / others;
  communicate("all_to_all", CollectiveKind::kAllToAll, bytes, received, channel, tag, [&] {
    std::vector<comm::Outgoing> sends;
    std::vector<comm::Incoming> receives;
    std::int64_t from = 0, to = 0;
    for (std::size_t i = 0; i < rows.sent.size(); ++i) {
      const std::int64_t sent_bytes = rows.sent[i] * row_bytes, received_bytes = rows.received[i] * row_bytes;
      sends.push_back({at(x, from), static_cast<std::size_t>(sent_bytes)});
      receives.push_back({at(y, to), static_cast<std::size_t>(received_bytes)});
      from += sent_bytes;
      to += received_bytes;
    }
    channel.ranks->all_to_all(channel.lane, sends, receives, tag);
  });
  return y;
}

Tensor gathered(const Tensor& x, const Channel& channel, const std::string& tag) {
  const Tensor y = Tensor::empty(with_size(x.shape(), 0, x.shape()[0] * channel.size()), x.dtype());
  communicate("all_gather", CollectiveKind::kAllGather, y.nbytes(), y.nbytes() - x.nbytes(), channel, tag, [&] {
    const comm::GatherPart part{x.raw(), y.raw(), static_cast<std::size_t>(x.nbytes())};
    channel.ranks->all_gather(channel.lane, {&part, 1}, tag);
  });
  return y;
}

Tensor reduced_rows(const Tensor& x, const Channel& channel, const std::string& tag) {
  const Tensor y = Tensor::empty(with_size(x.shape(), 0, x.shape()[0] / channel.size()), x.dtype());
  communicate("reduce_scatter", CollectiveKind::kReduceScatter, x.nbytes(), x.nbytes() - y.nbytes(), channel, tag, [&] {
    channel.ranks->reduce_scatter(channel.lane, x.raw(), y.raw(), y.numel(), x.dtype(), comm::ReduceOp::sum(), tag);
  });
  return y;
}

Tensor reduced(const Tensor& x, const Channel& channel, const std::string& tag) {
  const Tensor y = Tensor::empty(x.shape(), x.dtype());
  const device::Cost copy{.read_bytes = x.nbytes(), .written_bytes = y.nbytes(), .unit = device::Unit::kCopy};
  device::Device::current().launch("copy", copy,
                                   [&] { std::memcpy(y.raw(), x.raw(), static_cast<std::size_t>(x.nbytes())); });
  const std::int64_t received = 2 * (channel.size() - 1) * x.nbytes() / channel.size();
  communicate("all_reduce", CollectiveKind::kAllReduce, x.nbytes(), received, channel, tag, [&] {
    channel.ranks->all_reduce(channel.lane, y.raw(), y.numel(), y.dtype(), comm::ReduceOp::sum(), tag);
  });
  return y;
}

// `distance` is in [1, N).
Tensor shifted(const Tensor& x, int distance, const Channel& channel, const std::string& tag) {
  const Tensor y = Tensor::empty(x.shape(), x.dtype());
  communicate("send_recv", CollectiveKind::kSendRecv, x.nbytes(), x.nbytes(), channel, tag, [&] {
    const auto bytes = static_cast<std::size_t>(x.nbytes());
    const int ranks = channel.size();
    channel.ranks->send_recv(channel.lane, (channel.rank() + distance) % ranks, {x.raw(), bytes},
                             (channel.rank() + ranks - distance) % ranks, {y.raw(), bytes}, tag);
  });
  return y;
}

// --- Dims

// x [N * outer, inner...] of N parts, one behind another -> the parts joined along `dim` of `part`.
Tensor joined(const Tensor& x, const Shape& part, int dim, int ranks) {
  const std::int64_t outer = elems_of(part, 0, dim), inner = elems_of(part, dim, part.ndim());
  const Tensor parts = ops::reshape(x, {ranks, outer, inner});
  const Tensor moved = outer == 1 ? parts : ops::transpose(parts, 0, 1);
  return ops::reshape(moved, with_size(part, dim, part[dim] * ranks));
}

// The N parts of x along `dim`, one behind another in dim 0.
Tensor parts_of(const Tensor& x, int dim, int ranks) {
  const Shape& shape = x.shape();
  const std::int64_t outer = elems_of(shape, 0, dim), inner = elems_of(shape, dim, shape.ndim()) / ranks;
  const Tensor parts = ops::reshape(x, {outer, ranks, inner});
  const Tensor moved = outer == 1 ? parts : ops::transpose(parts, 0, 1);
  Shape stacked = with_size(shape, dim, shape[dim] / ranks);
  stacked[0] *= ranks;
  return ops::reshape(moved, stacked);
}

Tensor gathered_rows(const Tensor& x, const Channel& channel, const std::string& tag, Loss loss) {
  const Tensor y = gathered(x, channel, tag);
  autograd::record("all_gather", {x}, {}, {y},
                   [channel, tag, loss, rows = x.shape()[0]](Saved, const Grads& grads, const Needs&) -> Grads {
                     if (loss == Loss::kOfEachRank) return {reduced_rows(grads[0], channel, tag)};
                     return {grads[0].rows(channel.rank() * rows, rows)};
                   });
  return y;
}

}  // namespace

Tensor all_to_all(const Tensor& x, const RowCounts& rows, const Channel& channel, const std::string& tag) {
  check_rows(x, rows, channel.size());
  if (channel.size() == 1) return x;
  const Tensor y = exchanged(x, rows, channel, tag);
  autograd::record(
      "all_to_all", {x}, {}, {y},
      [back = RowCounts{rows.received, rows.sent}, channel, tag](Saved, const Grads& grads, const Needs&) -> Grads {
        return {exchanged(grads[0], back, channel, tag)};
      });
  return y;
}

Tensor exchange_dims(const Tensor& x, int split_dim, int join_dim, const Channel& channel, const std::string& tag) {
  const int split = checked_dim("exchange_dims", x, split_dim), join = checked_dim("exchange_dims", x, join_dim);
  const int ranks = channel.size();
  check_divides("exchange_dims", x, split, ranks);
  if (ranks == 1) return x;
  const Shape part = with_size(x.shape(), split, x.shape()[split] / ranks);
  const Tensor sent = parts_of(x, split, ranks);
  return joined(all_to_all(sent, RowCounts::equal(part[0], ranks), channel, tag), part, join, ranks);
}

Tensor all_gather(const Tensor& x, int given_dim, const Channel& channel, const std::string& tag, Loss loss) {
  const int dim = checked_dim("all_gather", x, given_dim);
  if (channel.size() == 1) return x;
  const Tensor y = gathered_rows(x, channel, tag, loss);
  return dim == 0 ? y : joined(y, x.shape(), dim, channel.size());
}

Tensor reduce_scatter(const Tensor& x, int given_dim, const Channel& channel, const std::string& tag) {
  const int dim = checked_dim("reduce_scatter", x, given_dim);
  check_divides("reduce_scatter", x, dim, channel.size());
  if (channel.size() == 1) return x;
  const Tensor parts = dim == 0 ? x : parts_of(x, dim, channel.size());
  const Tensor y = reduced_rows(parts, channel, tag);
  autograd::record(
      "reduce_scatter", {parts}, {}, {y},
      [channel, tag](Saved, const Grads& grads, const Needs&) -> Grads { return {gathered(grads[0], channel, tag)}; });
  return y;
}

Tensor all_reduce(const Tensor& x, const Channel& channel, const std::string& tag, Loss loss) {
  if (channel.size() == 1) return x;
  const Tensor y = reduced(x, channel, tag);
  autograd::record("all_reduce", {x}, {}, {y}, [channel, tag, loss](Saved, const Grads& grads, const Needs&) -> Grads {
    return {loss == Loss::kOfAll ? grads[0] : reduced(grads[0], channel, tag)};
  });
  return y;
}

Tensor with_summed_gradient(const Tensor& x, const Channel& channel, const std::string& tag) {
  if (channel.size() == 1) return x;
  const Tensor y = x.view(x.shape());
  autograd::record(
      "with_summed_gradient", {x}, {}, {y},
      [channel, tag](Saved, const Grads& grads, const Needs&) -> Grads { return {reduced(grads[0], channel, tag)}; });
  return y;
}

Tensor shift(const Tensor& x, int distance, const Channel& channel, const std::string& tag) {
  const int ranks = channel.size();
  const int forward = (distance % ranks + ranks) % ranks;
  if (forward == 0) return x;
  const Tensor y = shifted(x, forward, channel, tag);
  autograd::record("send_recv", {x}, {}, {y},
                   [back = ranks - forward, channel, tag](Saved, const Grads& grads, const Needs&) -> Grads {
                     return {shifted(grads[0], back, channel, tag)};
                   });
  return y;
}

}  // namespace loom::dist
