// Worker: a process of a program, the leader of a process group of its own.
//
// Orphans  the kernel kills it when the thread that started it ends, however that comes about; start workers from a
//          thread that lives as long as the launcher. Processes that the worker has started are not killed then.
// Errors   Error from the constructor where the program cannot be started: path, the system's words.
// Threads  one: the thread that made it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <sys/types.h>
#include <vector>

namespace loom::launcher {

struct WorkerStart {
  std::vector<std::string> program;      // the first word is a path
  std::vector<std::string> environment;  // "NAME=value"
  std::vector<int> cores{};              // empty: those of the launcher
  int out = -1, err = -1;                // descriptors; -1: the launcher's own
};

// How it ended.
struct WorkerEnd {
  int exit_code = 0;
  int signal = 0;  // 0: by itself
  std::int64_t unix_ms = 0;
  bool well() const { return exit_code == 0 && signal == 0; }
};

class Worker {
 public:
  explicit Worker(const WorkerStart& start);
  // Kills it and its group if it runs.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  pid_t pid() const { return pid_; }
  bool running() const { return !end_; }
  // Its end, if it has ended; does not wait. What it has started is killed with a worker that did not end well.
  const std::optional<WorkerEnd>& look();
  // To its group; does nothing where it has ended.
  void send(int signal) const;

 private:
  pid_t pid_ = -1;
  std::optional<WorkerEnd> end_;
};

}  // namespace loom::launcher
