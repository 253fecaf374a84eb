// MpiTransport: this process's communication thread, the only one that calls MPI.
//
// Model    The thread posts the messages of a batch non-blocking and polls: briefly in a row, then yielding, then
//          sleeping up to 200 us between polls. With no batch under way it sleeps.
// Failure  A notice of failure travels on a communicator of its own. Receives under way are cancelled.
#pragma once

#include <mpi.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/comm/messages/transport.h"

namespace loom::comm::mpi {

class MpiBatch;

class MpiTransport final : public messages::Transport {
 public:
  // Starts the thread, which initialises MPI. `timeout` is a batch's deadline.
  explicit MpiTransport(std::chrono::milliseconds timeout);
  // Finalises MPI. Precondition: no batch is under way, here or at a peer.
  ~MpiTransport() override;

  int rank() const override { return rank_; }
  const std::vector<int>& nodes() const override { return nodes_; }
  int largest_tag() const override { return largest_tag_; }
  std::shared_ptr<messages::Batch> start(int tag, std::vector<messages::Message> messages) override;
  void abort_job() override;
  // The end comes without MPI_Finalize, which is collective and asks the launcher.
  void skip_farewell() override { finalises_ = false; }

 private:
  using Batches = std::vector<std::shared_ptr<MpiBatch>>;

  void wake() noexcept override { changed_.notify_all(); }
  void serve();
  void initialise();
  void finalise();
  void find_nodes();
  void serve_until_stopped();
  // Sleeps as the polls without progress ask for; returns the batches handed over since.
  Batches take_new(int idle_polls);
  void post(const std::shared_ptr<MpiBatch>& batch);
  bool poll_batches();
  void poll_notice();
  void receive_notices();
  void spread_failure();
  void end_after_grace();

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
  Batches active_;
  bool failure_spread_ = false;

  std::condition_variable changed_;
  // Guarded by the mutex.
  Batches fresh_;
  bool initialised_ = false;
  bool stopping_ = false;
  bool aborting_ = false;
  bool finalises_ = true;  // set by the host thread before it sets stopping_

  std::thread thread_;
};

}  // namespace loom::comm::mpi
