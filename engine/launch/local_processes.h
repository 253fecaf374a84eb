// The processes that torchrun or msrun starts on one host, one for each rank: the first runs all ranks as threads, and
// the others wait for its end and end alike.
//
// Meeting   an abstract Unix socket of this user, named after MASTER_PORT, the run's id and its restart.
// Errors    ConfigError for processes on several hosts, or without MASTER_PORT; Error in a waiting process if the first
//           does not come before the deadline, fails, or ends without a word.
#pragma once

#include <chrono>
#include <memory>

#include "engine/launch/start.h"

namespace loom {
class Descriptor;
}

namespace loom::launch {

// In the process of rank 0: the others learn from it how the run ended.
class FirstProcess {
 public:
  // Does nothing where no launcher has started processes.
  explicit FirstProcess(const Start& start);
  // Without succeed(), the run has failed.
  ~FirstProcess();
  FirstProcess(const FirstProcess&) = delete;
  FirstProcess& operator=(const FirstProcess&) = delete;

  void succeed() { status_ = 0; }

 private:
  const int others_;
  char status_ = 1;
  std::unique_ptr<Descriptor> socket_;
};

// In the other processes: returns when the run has succeeded.
void wait_for_first(const Start& start, std::chrono::milliseconds deadline);

}  // namespace loom::launch
