// StopSignals: signals that end a program, as a request that the run notices between two steps, instead of the
// process's end.
//
// Which    kStopSignals: SIGTERM; SIGINT; SIGHUP, of a session that ends; SIGUSR1 and SIGUSR2, with which batch systems
//          warn before they kill.
// First    is noted and reported on stderr at once, in one line.
// Second   of the same signal, at least a second later: ends the process at once, as if nothing had been installed.
//          (Launchers send a signal to the process and to its group, which is one request; a batch system warns with
//          one signal and repeats the request with another one.)
// Ignored  a signal that was ignored before (nohup, a shell's background job) stays ignored.
// Scope    the process; one object at a time. Its end restores the previous handlers.
// Source   Megatron-LM, --exit-signal-handler.
#pragma once

#include <array>
#include <csignal>
#include <string>

#include "engine/core/error.h"

namespace loom::launch {

// If ranks have several signals, the run takes the first one in this order.
inline constexpr std::array kStopSignals{SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2};

class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // The signal that came first, or 0. Any thread.
  static int received();

 private:
  std::array<struct sigaction, kStopSignals.size()> before_{};
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
