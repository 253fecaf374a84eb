// RunEnd: the result of the run of a process's ranks, once all have ended. Private to engine/cli.
//
// Gathered  the missing outputs, and whether a signal stopped the run. The rank that reports provides the texts.
// Time      the run begins with the object.
// Threads   the ranks' threads, at once.
#pragma once

#include <chrono>
#include <fmt/format.h>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/core/error.h"
#include "engine/launch/stop_signals.h"

namespace loom::cli {

class RunEnd {
 public:
  double minutes() const {
    return std::chrono::duration<double, std::ratio<60>>(std::chrono::steady_clock::now() - began_).count();
  }
  void lost(const std::optional<std::string>& problem) {
    const std::lock_guard lock(mutex_);
    if (problem) problems_.push_back(*problem);
  }
  void stopped(int signal, const std::string& text) {
    const std::lock_guard lock(mutex_);
    signal_ = signal;
    if (!text.empty()) problems_.insert(problems_.begin(), text);
  }
  // After the last rank of this process.
  void raise_stop() const {
    if (signal_ != 0) throw launch::Interrupted(signal_, fmt::format("{}", fmt::join(problems_, "; ")));
  }
  void raise_problems() const {
    raise_stop();
    if (!problems_.empty()) raise<Error>("the run is done, but {}", fmt::join(problems_, "; "));
  }

 private:
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  std::mutex mutex_;
  int signal_ = 0;
  std::vector<std::string> problems_;
};

}  // namespace loom::cli
