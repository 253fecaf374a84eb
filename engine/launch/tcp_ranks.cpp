#include <thread>

#include "engine/comm/tcp/store.h"
#include "engine/comm/tcp/tcp_transport.h"
#include "engine/core/error.h"
#include "engine/launch/run_ranks.h"

namespace loom::launch {

void run_tcp_rank(const comm::tcp::TcpJob& job, const comm::CommOptions& options, const RankMain& main) {
  comm::tcp::TcpTransport transport(job, options.timeout);
  run_rank_of(transport, main);
}

void serve_store(const comm::tcp::TcpJob& job, const comm::CommOptions& options) {
  using Clock = std::chrono::steady_clock;
  constexpr auto kLook = std::chrono::milliseconds(100);
  comm::tcp::Socket listening = comm::tcp::listen_on(job.store.port);
  if (listening == nullptr) {
    config_error("MS_SCHED_PORT {} is in use on this machine; give msrun another --master_port", job.store.port);
  }
  const comm::tcp::StoreServer store(std::move(listening));
  const auto deadline = Clock::now() + options.timeout;
  while (store.connections().ever < job.size) {
    if (Clock::now() >= deadline) {
      raise<CommError>("{} of {} ranks have come to the scheduler at {} within {} s; look at their output",
                       store.connections().ever, job.size, comm::tcp::to_text(job.store),
                       options.timeout.count() / 1000);
    }
    std::this_thread::sleep_for(kLook);
  }
  while (store.connections().open > 0) std::this_thread::sleep_for(kLook);
}

}  // namespace loom::launch
