// The exit status of a program, and its message on stderr when it fails: one line that begins with its name.
//
// 0 done; 1 a run failed, or some of its output is missing; 2 the command line or a file of the
// user's is wrong; 3 a planned step does not fit; 128 + signal: a run that was stopped and ended in order.
#pragma once

#include <functional>
#include <string_view>

namespace loom::cli {

inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitDoesNotFit = 3;
inline constexpr int kExitSignal = 128;

// The status that `main` returns, or the status for its exception; 1 if main succeeded but standard output could not be
// written. Secures the standard streams first (standard_streams.h).
int exit_status_of(std::string_view program, const std::function<int()>& main);

}  // namespace loom::cli
