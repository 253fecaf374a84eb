// Interrupts: Ctrl-C in a conversation. Private to engine/talk.
//
// First    is noted, for whoever asks.
// Second   ends the process at once, as if nothing had been installed.
// Scope    of the process; one object at a time. What was installed before comes back at its end.
#pragma once

#include <csignal>

namespace loom::talk {

class Interrupts {
 public:
  // `caught` false: SIGINT stays as it is.
  explicit Interrupts(bool caught);
  ~Interrupts();
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  // Since the last forget(). Any thread.
  static bool noted();
  static void forget();

 private:
  const bool caught_;
  struct sigaction before_ {};
};

}  // namespace loom::talk
