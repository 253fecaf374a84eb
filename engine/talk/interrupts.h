// Interrupts: Ctrl-C in a conversation. Private to engine/talk.
//
// First    is recorded, for noted().
// Second   ends the process at once, as without a handler.
// Scope    of the process; one object at a time. Its end restores the earlier handler.
#pragma once

#include <csignal>

namespace loom::talk {

class Interrupts {
 public:
  // `caught` false: SIGINT is not handled.
  explicit Interrupts(bool caught);
  ~Interrupts();
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  // Whether one came since the last forget(). Any thread.
  static bool noted();
  static void forget();

 private:
  const bool caught_;
  struct sigaction before_ {};
};

}  // namespace loom::talk
