// Transport: messages between the processes that are ranks, by MPI (mpi_transport.h) or TCP (tcp_transport.h).
//
// Model    Callers hand over batches of point-to-point messages and sleep until a batch has ended. A communication
//          thread of the transport moves them. Messages of one pair and tag arrive in the order they were started;
//          those of different tags do not wait for each other. Sender and receiver know the bytes of a message.
// Failure  Each batch has a deadline. The first failure of the job, here or at a peer, ends every batch under way and
//          every later one; nothing is written to the memory of a batch that has ended.
// Threads  start(), wait() and fail() from any thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace loom::comm::messages {

enum class Direction : std::uint8_t { kSend, kReceive };

struct Message {
  Direction direction = Direction::kSend;
  int peer = 0;          // world rank
  void* data = nullptr;  // only read from when sent
  std::size_t bytes = 0;
};

// How a batch ended.
struct Outcome {
  bool done = false;
  std::vector<int> missing{};  // the peers still waited for at the deadline; empty when the job failed
};

// Messages that are under way together.
class Batch {
 public:
  virtual ~Batch() = default;

 private:
  friend class Transport;
  std::condition_variable ended_;
  std::optional<Outcome> outcome_;  // guarded by the transport's mutex
};

class Transport {
 public:
  virtual ~Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  virtual int rank() const = 0;
  int size() const { return static_cast<int>(nodes().size()); }
  // Of a batch.
  std::chrono::milliseconds timeout() const { return timeout_; }
  // For every world rank a number that ranks of one machine have in common.
  virtual const std::vector<int>& nodes() const = 0;
  virtual int largest_tag() const = 0;

  virtual std::shared_ptr<Batch> start(int tag, std::vector<Message> messages) = 0;
  Outcome wait(Batch& batch);

  // Tells all other ranks, unless a failure is known already.
  void fail(const std::string& reason) noexcept;
  // "rank 0 failed first: ..."
  std::string failure() const;
  // Waits a few seconds for the peers to learn of the failure, and ends the communication thread; MPI ends the whole
  // job. The process must end next.
  virtual void abort_job() = 0;
  // A launcher that is ending the job itself answers no farewell.
  virtual void skip_farewell() = 0;

 protected:
  struct Failure {
    int rank = 0;
    std::string reason;
  };

  explicit Transport(std::chrono::milliseconds timeout) : timeout_(timeout) {}

  void end(Batch& batch, Outcome outcome);
  // Of a peer; the first one counts.
  void note_failure(Failure failure);
  std::optional<Failure> known_failure() const;
  // The communication thread looks again at what is guarded. Called with the mutex held.
  virtual void wake() noexcept = 0;

  mutable std::mutex mutex_;
  std::optional<Failure> failure_;  // guarded by mutex_

 private:
  const std::chrono::milliseconds timeout_;
};

}  // namespace loom::comm::messages
