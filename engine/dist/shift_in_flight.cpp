#include "engine/dist/shift_in_flight.h"

#include <utility>

#include "engine/core/log.h"
#include "engine/device/device.h"

namespace loom::dist {
namespace {

constexpr comm::Lane kExchangeLane{5};

device::Stream& exchange_stream() { return device::Device::current().stream(device::StreamId::kExchange); }
device::Stream& compute_stream() { return device::Device::current().stream(device::StreamId::kCompute); }

}  // namespace

ShiftInFlight::ShiftInFlight(Tensor x, const Channel& ring, const std::string& tag)
    : sent_(std::move(x)), received_(Tensor::empty(sent_.shape(), sent_.dtype())) {
  std::function<void()> run;
  if (!device::Device::current().dry_run()) {
    run = [from = sent_.raw(), to = received_.raw(), bytes = static_cast<std::size_t>(sent_.nbytes()), ring, tag] {
      const int ranks = ring.size(), rank = ring.rank();
      ring.ranks->send_recv(kExchangeLane, (rank + 1) % ranks, {from, bytes}, (rank + ranks - 1) % ranks, {to, bytes},
                            tag);
    };
  }
  device::Stream& stream = exchange_stream();
  stream.wait(compute_stream().record());
  stream.submit({"send_recv",
                 tag,
                 {.link_bytes = sent_.nbytes(), .unit = device::Unit::kLink},
                 std::move(run),
                 device::Collective{device::CollectiveKind::kSendRecv, sent_.nbytes(), &ring.ranks->ranks(),
                                    ring.ranks->name()}});
  done_ = stream.record();
}

ShiftInFlight::~ShiftInFlight() {
  if (!received_.defined()) return;
  try {
    exchange_stream().synchronize();
  } catch (const std::exception& error) {
    log_warning("an exchange that nobody waited for failed: {}", error.what());
  }
}

Tensor ShiftInFlight::wait() {
  compute_stream().wait(done_);
  sent_ = {};
  return std::exchange(received_, {});
}

}  // namespace loom::dist
