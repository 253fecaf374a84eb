// StopSignals: SIGINT and SIGTERM as a request that the run notices between two steps, instead of the process's end.
//
// First    is noted; one line on stderr says so at once.
// Second   at least a second later: ends the process at once, as if nothing had been installed. (Launchers send a
//          signal to the process and to its group, which is one request.)
// Ignored  a signal that was ignored before (nohup, a shell's background job) stays ignored.
// Scope    of the process; one object at a time. What was installed before comes back at its end.
// Source   Megatron-LM, --exit-signal-handler.
#pragma once

#include <array>
#include <csignal>
#include <string>

#include "engine/core/error.h"

namespace loom::launch {

class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // The signal that came first, or 0. Any thread.
  static int received();

 private:
  static constexpr std::array kSignals{SIGINT, SIGTERM};
  std::array<struct sigaction, kSignals.size()> before_{};
};

// "SIGTERM".
std::string signal_name(int number);

// A run that ended in order because of a signal. A program that ends with it has the status 128 + signal.
class Interrupted : public Error {
 public:
  Interrupted(int signal, const std::string& text) : Error(text), signal_(signal) {}
  int signal() const { return signal_; }

 private:
  int signal_;
};

}  // namespace loom::launch
