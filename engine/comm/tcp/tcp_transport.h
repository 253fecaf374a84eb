// TcpTransport: messages of processes that met at MASTER_ADDR and MASTER_PORT, over TCP (peer_link.h).
//
// Model    A communication thread serves the connections with all other ranks. It sleeps until one of them moves.
// Failure  A rank that fails tells all others, and each passes it on before it ends; a connection that ends without a
//          farewell is a failure of its rank. A host that vanishes without a word is noticed within 45 s (or at a
//          batch's deadline, if that is earlier). A rank that does not look at its failed job within 10 s is ended.
// Source   join.h: who the others are.
#pragma once

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/comm/messages/transport.h"
#include "engine/comm/tcp/tcp_job.h"
#include "engine/core/wake_event.h"

namespace loom::comm::tcp {

struct Joined;
class PeerLink;
class TcpBatch;

class TcpTransport final : public messages::Transport {
 public:
  // Meets the other ranks, within `timeout`, which is a batch's deadline too. CommError as join.h.
  TcpTransport(const TcpJob& job, std::chrono::milliseconds timeout);
  // Waits for the others' farewell, a few seconds.
  ~TcpTransport() override;

  int rank() const override { return rank_; }
  const std::vector<int>& nodes() const override { return nodes_; }
  int largest_tag() const override;
  std::shared_ptr<messages::Batch> start(int tag, std::vector<messages::Message> messages) override;
  void abort_job() override;
  void skip_farewell() override {}

 private:
  using Batches = std::vector<std::shared_ptr<TcpBatch>>;
  enum class End { kNone, kOrdered, kAborted };

  void wake() noexcept override { wake_.wake(); }
  void serve();
  void wait_for_events();
  void take_fresh();
  void post(const std::shared_ptr<TcpBatch>& batch);
  void move_bytes();
  void move_bytes(int peer);
  void lose(int peer, const std::string& reason);
  void end_batches();
  void spread_failure();
  void end_if_busy_elsewhere();
  bool ends();
  End end_wanted() const;
  bool all_have_ended() const;

  const int rank_;
  std::unique_ptr<Joined> joined_;  // the store
  const std::vector<int> nodes_;

  // The communication thread's own.
  std::vector<std::unique_ptr<PeerLink>> links_;  // by rank; null: this rank, or a connection that has ended
  std::vector<bool> ended_;                       // by rank: with a farewell
  std::vector<bool> moves_;                       // by rank: something may have arrived
  Batches active_;
  bool failure_spread_ = false;
  std::chrono::steady_clock::time_point failed_at_{};
  bool says_farewell_ = false;
  std::chrono::steady_clock::time_point latest_end_{};

  const WakeEvent wake_{};
  // Guarded by the mutex.
  Batches fresh_;
  End end_ = End::kNone;

  std::thread thread_;
};

}  // namespace loom::comm::tcp
