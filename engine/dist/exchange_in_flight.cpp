#include "engine/dist/exchange_in_flight.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "engine/core/log.h"
#include "engine/device/device.h"
#include "engine/device/exchange_stream.h"

namespace loom::dist {
namespace {

constexpr comm::Lane kExchangeLane{5};

device::Stream& exchange_stream() { return device::Device::current().stream(device::kExchangeStream); }
device::Stream& compute_stream() { return device::Device::current().stream(device::StreamId::kCompute); }

}  // namespace

Exchange exchange_of_rows(const Tensor& x, const RowCounts& rows, const Channel& channel, const std::string& tag) {
  Shape shape = x.shape();
  shape[0] = std::accumulate(rows.received.begin(), rows.received.end(), std::int64_t{0});
  const Tensor y = Tensor::empty(shape, x.dtype());
  const std::int64_t row_bytes = shape.row_elems() * element_bytes(x.dtype());
  const auto own = static_cast<std::size_t>(channel.rank());
  const std::int64_t others = channel.size() - 1;
  const std::int64_t sent = x.nbytes() - rows.sent[own] * row_bytes;
  const std::int64_t received = y.nbytes() - rows.received[own] * row_bytes;
  const auto run = [first = x.raw(), place = y.raw(), rows, row_bytes, ranks = channel.ranks, tag](comm::Lane lane) {
    std::vector<comm::Outgoing> sends;
    std::vector<comm::Incoming> receives;
    auto* from = static_cast<std::byte*>(first);
    auto* to = static_cast<std::byte*>(place);
    for (std::size_t i = 0; i < rows.sent.size(); ++i) {
      const std::int64_t sent_bytes = rows.sent[i] * row_bytes, received_bytes = rows.received[i] * row_bytes;
      sends.push_back({from, static_cast<std::size_t>(sent_bytes)});
      receives.push_back({to, static_cast<std::size_t>(received_bytes)});
      from += sent_bytes;
      to += received_bytes;
    }
    ranks->all_to_all(lane, sends, receives, tag);
  };
  return {
      "all_to_all", device::CollectiveKind::kAllToAll, std::max(sent, received) * (others + 1) / others, received, y,
      run};
}

// `distance` is in [1, N).
Exchange exchange_around(const Tensor& x, int distance, const Channel& channel, const std::string& tag) {
  const Tensor y = Tensor::empty(x.shape(), x.dtype());
  const auto bytes = static_cast<std::size_t>(x.nbytes());
  const auto run = [from = x.raw(), to = y.raw(), bytes, distance, channel, tag](comm::Lane lane) {
    const int ranks = channel.size();
    channel.ranks->send_recv(lane, (channel.rank() + distance) % ranks, {from, bytes},
                             (channel.rank() + ranks - distance) % ranks, {to, bytes}, tag);
  };
  return {"send_recv", device::CollectiveKind::kSendRecv, x.nbytes(), x.nbytes(), y, run};
}

Exchange gather_of_slice(const Tensor& part, const TokenSlices& slices, int slice, const Tensor& whole,
                         const Channel& channel, const std::string& tag) {
  const auto row_bytes = static_cast<std::size_t>(part.shape()[-1] * element_bytes(part.dtype()));
  const std::int64_t own = slices.rows(slice) * static_cast<std::int64_t>(row_bytes);
  const auto run = [from = part.raw(), to = whole.raw(), row_bytes, first = slices.begin(slice),
                    segments = slices.segments(slice), ranks = channel.ranks, tag](comm::Lane lane) {
    std::vector<comm::GatherPart> parts;
    for (const TokenSlices::Segment& segment : segments) {
      const auto row = static_cast<std::size_t>(first + segment.first);
      parts.push_back({static_cast<const std::byte*>(from) + row * row_bytes,
                       static_cast<std::byte*>(to) + static_cast<std::size_t>(segment.in_whole.begin) * row_bytes,
                       static_cast<std::size_t>(segment.in_whole.rows) * row_bytes,
                       static_cast<std::size_t>(segment.in_whole.stride) * row_bytes});
    }
    ranks->all_gather(lane, parts, tag);
  };
  return {"all_gather", device::CollectiveKind::kAllGather, own * channel.size(), own * (channel.size() - 1), whole,
          run};
}

Exchange sum_of_slice(const Tensor& stack, const TokenSlices& slices, int slice, const Tensor& part,
                      const Channel& channel, const std::string& tag) {
  const std::int64_t width = part.shape()[-1], elems = slices.rows(slice) * width;
  const std::int64_t own = elems * element_bytes(part.dtype());
  const auto run = [from = stack.raw(), to = part.raw(), elems, skipped = slices.begin(slice) * width,
                    dtype = part.dtype(), ranks = channel.ranks, tag](comm::Lane lane) {
    auto* place = static_cast<std::byte*>(to) + skipped * element_bytes(dtype);
    ranks->reduce_scatter(lane, from, place, elems, dtype, comm::ReduceOp::sum(), tag);
  };
  return {"reduce_scatter",
          device::CollectiveKind::kReduceScatter,
          own * channel.size(),
          own * (channel.size() - 1),
          part,
          run};
}

ExchangeInFlight::ExchangeInFlight(Tensor sent, Exchange exchange, const Channel& channel, const std::string& tag)
    : sent_(std::move(sent)), received_(exchange.received) {
  std::function<void()> run;
  if (!device::Device::current().dry_run()) {
    run = [call = std::move(exchange.run)] { call(kExchangeLane); };
  }
  device::Stream& stream = exchange_stream();
  stream.wait(compute_stream().record());
  stream.submit({exchange.name,
                 tag,
                 {.link_bytes = exchange.received_bytes, .unit = device::Unit::kLink},
                 std::move(run),
                 device::Collective{exchange.kind, exchange.bytes, &channel.ranks->ranks(), channel.ranks->name()}});
  done_ = stream.record();
}

ExchangeInFlight ExchangeInFlight::shift(Tensor x, const Channel& ring, const std::string& tag) {
  Exchange exchange = exchange_around(x, 1, ring, tag);
  return {std::move(x), std::move(exchange), ring, tag};
}

ExchangeInFlight::~ExchangeInFlight() {
  if (!received_.defined()) return;
  try {
    exchange_stream().synchronize();
  } catch (const std::exception& error) {
    log_warning("an exchange that nobody waited for failed: {}", error.what());
  }
}

Tensor ExchangeInFlight::wait() {
  compute_stream().wait(done_);
  sent_ = {};
  return std::exchange(received_, {});
}

}  // namespace loom::dist
