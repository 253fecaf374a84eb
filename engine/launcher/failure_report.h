// The failure report of a job: the first worker that failed, by time, and what it said last.
#pragma once

#include <string>
#include <vector>

#include "engine/launcher/message.h"

namespace loom::launcher {

// "exit code 3", or "signal SIGKILL".
std::string cause_of(const Failure& failure);
// "rank 1 (local rank 1 on node7) ended with exit code 3".
std::string headline_of(const Failure& failure);
// The first by time; the rest in one line each; `restarts` of `max_restarts` were used. Further lines begin with two
// spaces.
std::string failure_report(std::vector<Failure> failures, int restarts, int max_restarts);
// Of the stderr of a worker, at most.
inline constexpr std::size_t kLastLinesBytes = 4096;

}  // namespace loom::launcher
