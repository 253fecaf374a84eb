// MpiTransport: this process's communication thread, the only one that calls MPI.
//
// Model    Callers hand over batches of point-to-point messages and sleep until a batch has ended. The thread posts
//          them non-blocking and polls: briefly in a row, then yielding, then sleeping up to 200 us between polls. With
//          no batch under way it sleeps. Messages of one pair and tag arrive in the order they were started; those of
//          different tags do not wait for each other.
// Failure  Each batch has a deadline. A notice of failure travels on a communicator of its own; the first one ends
//          every batch under way and every later one. Receives under way are cancelled, so that nothing is written to
//          memory its owner has left.
// Threads  start(), wait() and fail() from any thread.
#pragma once

#include <mpi.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/comm/process_group.h"

namespace loom::comm::mpi {

enum class Direction : std::uint8_t { kSend, kReceive };

struct Message {
  Direction direction = Direction::kSend;
  int peer = 0;          // world rank
  void* data = nullptr;  // only read from when sent
  std::size_t bytes = 0;
};

// Messages that are under way together.
class Batch;

// How a batch ended.
struct Outcome {
  bool done = false;
  std::vector<int> missing;  // the peers still waited for at the deadline; empty when the job failed
};

class MpiTransport {
 public:
  // Starts the thread, which initialises MPI. `timeout` is a batch's deadline.
  explicit MpiTransport(std::chrono::milliseconds timeout);
  // Finalises MPI. Precondition: no batch is under way, here or at a peer.
  ~MpiTransport();
  MpiTransport(const MpiTransport&) = delete;
  MpiTransport& operator=(const MpiTransport&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(nodes_.size()); }
  std::chrono::milliseconds timeout() const { return timeout_; }
  // For every world rank a number that ranks of one machine have in common.
  const std::vector<int>& nodes() const { return nodes_; }
  int largest_tag() const { return largest_tag_; }

  std::shared_ptr<Batch> start(int tag, std::vector<Message> messages);
  Outcome wait(Batch& batch);

  // Tells all other ranks, unless a failure is known already.
  void fail(const std::string& reason) noexcept;
  // "rank 0 failed first: ..."
  std::string failure() const;
  // Waits a few seconds for the peers to learn of the failure, then ends the whole job with exit code 1.
  [[noreturn]] void abort_job();
  // The end comes without MPI_Finalize, which is collective and asks the launcher.
  void skip_finalise() { finalises_ = false; }

 private:
  struct Failure {
    int rank = 0;
    std::string reason;
  };

  void serve();
  void initialise();
  void finalise();
  void find_nodes();
  void serve_until_stopped();
  // Sleeps as the polls without progress ask for; returns the batches handed over since.
  std::vector<std::shared_ptr<Batch>> take_new(int idle_polls);
  void post(const std::shared_ptr<Batch>& batch);
  bool poll_batches();
  void poll_notice();
  void receive_notices();
  void spread_failure();
  void end(Batch& batch, Outcome outcome);
  void end_after_grace();

  const std::chrono::milliseconds timeout_;

  // Written by the communication thread before the constructor returns.
  int rank_ = 0;
  int largest_tag_ = 0;
  std::vector<int> nodes_;

  // The communication thread's own.
  MPI_Comm messages_ = MPI_COMM_NULL;
  MPI_Comm notices_ = MPI_COMM_NULL;
  MPI_Request notice_ = MPI_REQUEST_NULL;
  std::vector<char> notice_text_;
  std::vector<char> own_notice_;
  std::vector<std::shared_ptr<Batch>> active_;
  bool failure_spread_ = false;

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::vector<std::shared_ptr<Batch>> fresh_;
  std::optional<Failure> failure_;
  bool initialised_ = false;
  bool stopping_ = false;
  bool aborting_ = false;
  bool finalises_ = true;  // set by the host thread before it sets stopping_

  std::thread thread_;
};

}  // namespace loom::comm::mpi
