#include "engine/dist/operators.h"

#include <algorithm>
#include <fmt/ranges.h>
#include <numeric>
#include <string_view>

#include "engine/core/error.h"
#include "engine/dist/collectives.h"
#include "engine/dist/exchange_in_flight.h"
#include "engine/tensor/autograd.h"
#include "engine/tensor/ops/general.h"

namespace loom::dist {
namespace {

using autograd::Grads;
using autograd::Needs;
using autograd::Saved;
using device::CollectiveKind;

std::int64_t sum_of(const std::vector<std::int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

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

// On the compute stream.
Tensor arrived(const Exchange& exchange, const Channel& channel, const std::string& tag) {
  communicate(exchange.name, exchange.kind, exchange.bytes, exchange.received_bytes, channel, tag,
              [run = exchange.run, lane = channel.lane] { run(lane); });
  return exchange.received;
}

Tensor exchanged(const Tensor& x, const RowCounts& rows, const Channel& channel, const std::string& tag) {
  return arrived(exchange_of_rows(x, rows, channel, tag), channel, tag);
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

Tensor summed(const Tensor& x, const Channel& channel, const std::string& tag) {
  return reduced(x, comm::ReduceOp::sum(), channel, tag);
}

Tensor shifted(const Tensor& x, int distance, const Channel& channel, const std::string& tag) {
  return arrived(exchange_around(x, distance, channel, tag), channel, tag);
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

PendingRows::PendingRows(const Tensor& x, const RowCounts& rows, const Channel& channel, const std::string& tag)
    : back_{rows.received, rows.sent}, channel_(channel), tag_(tag) {
  check_rows(x, rows, channel.size());
  if (channel.size() == 1) {
    rows_ = x;
    return;
  }
  there_ = std::make_unique<ExchangeInFlight>(x, exchange_of_rows(x, rows, channel, tag), channel, tag);
  way_back_ = std::make_shared<std::unique_ptr<ExchangeInFlight>>();
  rows_ = there_->received();
  autograd::record("all_to_all", {x}, {}, {rows_}, [back = way_back_](Saved, const Grads&, const Needs&) -> Grads {
    return {std::exchange(*back, nullptr)->wait()};
  });
}

PendingRows::~PendingRows() = default;

Tensor PendingRows::wait() {
  if (there_ == nullptr) return rows_;
  there_->wait();
  there_.reset();
  const Tensor y = rows_.view(rows_.shape());
  autograd::record("all_to_all_wait", {rows_}, {}, {y},
                   [back = way_back_, counts = back_, channel = channel_, tag = tag_](Saved, const Grads& grads,
                                                                                      const Needs&) -> Grads {
                     *back = std::make_unique<ExchangeInFlight>(
                         grads[0], exchange_of_rows(grads[0], counts, channel, tag), channel, tag);
                     return {(*back)->received()};
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

Tensor own_part(const Tensor& x, int given_dim, const Channel& channel, const std::string& tag) {
  const int dim = checked_dim("own_part", x, given_dim);
  check_divides("own_part", x, dim, channel.size());
  if (channel.size() == 1) return x;
  Tensor y;
  {
    const autograd::NoGrad whole;
    const std::vector<std::int64_t> sizes(static_cast<std::size_t>(channel.size()), x.shape()[dim] / channel.size());
    y = ops::split(x, sizes, dim)[static_cast<std::size_t>(channel.rank())];
  }
  autograd::record("own_part", {x}, {}, {y}, [dim, channel, tag](Saved, const Grads& grads, const Needs&) -> Grads {
    const autograd::NoGrad unrecorded;
    return {all_gather(grads[0], dim, channel, tag)};
  });
  return y;
}

Tensor all_reduce(const Tensor& x, const Channel& channel, const std::string& tag, Loss loss) {
  if (channel.size() == 1) return x;
  const Tensor y = summed(x, channel, tag);
  autograd::record("all_reduce", {x}, {}, {y}, [channel, tag, loss](Saved, const Grads& grads, const Needs&) -> Grads {
    return {loss == Loss::kOfAll ? grads[0] : summed(grads[0], channel, tag)};
  });
  return y;
}

Tensor with_summed_gradient(const Tensor& x, const Channel& channel, const std::string& tag) {
  if (channel.size() == 1) return x;
  const Tensor y = x.view(x.shape());
  autograd::record(
      "with_summed_gradient", {x}, {}, {y},
      [channel, tag](Saved, const Grads& grads, const Needs&) -> Grads { return {summed(grads[0], channel, tag)}; });
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
