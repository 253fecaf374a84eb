// An exchange between ranks that runs beside the compute stream's work until it is waited for. Private to engine/dist.
//
// Stream   the exchange stream, after what the compute stream was given so far; the lane is its own.
// Bits     and bytes are those of shift(), all_to_all(), all_gather() and reduce_scatter(), which run on the compute
//          stream.
// Errors   of the exchange come from wait(). Without it the destructor waits, and drops them.
// Threads  the rank's host thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "engine/device/event.h"
#include "engine/device/issue_log.h"
#include "engine/dist/channel.h"
#include "engine/dist/operators.h"
#include "engine/dist/token_slices.h"
#include "engine/tensor/tensor.h"

namespace loom::dist {

// An exchange before any stream has it. `run` makes the call; what it sends and receives outlives it, and it owns no
// tensor: another thread may drop it last.
struct Exchange {
  std::string_view name;
  device::CollectiveKind kind = device::CollectiveKind::kAllToAll;
  std::int64_t bytes = 0;           // device::Collective
  std::int64_t received_bytes = 0;  // from other ranks
  Tensor received;
  std::function<void(comm::Lane lane)> run;
};
// Of all_to_all() and shift(); 2 ranks or more.
Exchange exchange_of_rows(const Tensor& x, const RowCounts& rows, const Channel& channel, const std::string& tag);
Exchange exchange_around(const Tensor& x, int distance, const Channel& channel, const std::string& tag);

// The slice of all ranks' parts, to its places in `whole`.
Exchange gather_of_slice(const Tensor& part, const TokenSlices& slices, int slice, const Tensor& whole,
                         const Channel& channel, const std::string& tag);
// The sum over the ranks of the slice's stack, of which each gets its rows, to their places in `part`.
Exchange sum_of_slice(const Tensor& stack, const TokenSlices& slices, int slice, const Tensor& part,
                      const Channel& channel, const std::string& tag);

class ExchangeInFlight {
 public:
  // Nobody writes to `sent` before wait().
  ExchangeInFlight(Tensor sent, Exchange exchange, const Channel& channel, const std::string& tag);
  // x goes to the next rank.
  static ExchangeInFlight shift(Tensor x, const Channel& ring, const std::string& tag);
  ExchangeInFlight(ExchangeInFlight&& other) noexcept = default;
  ExchangeInFlight& operator=(ExchangeInFlight&& other) = delete;
  ~ExchangeInFlight();

  // The place of what arrives, before it has arrived.
  const Tensor& received() const { return received_; }
  // What arrived: the compute stream's later work may read it. Once.
  Tensor wait();

 private:
  Tensor sent_;
  Tensor received_;
  device::Event done_;
};

}  // namespace loom::dist
