#include "engine/talk/interrupts.h"

#include <atomic>

namespace loom::talk {
namespace {

std::atomic<int> count{0};
static_assert(std::atomic<int>::is_always_lock_free);

void note(int number) {
  if (count.fetch_add(1) == 0) return;
  ::signal(number, SIG_DFL);
  ::raise(number);  // delivered when this handler returns
}

}  // namespace

Interrupts::Interrupts(bool caught) : caught_(caught) {
  forget();
  if (!caught_) return;
  struct sigaction action {};
  action.sa_handler = note;
  action.sa_flags = SA_RESTART;
  ::sigemptyset(&action.sa_mask);
  ::sigaction(SIGINT, &action, &before_);
}

Interrupts::~Interrupts() {
  if (caught_) ::sigaction(SIGINT, &before_, nullptr);
}

bool Interrupts::noted() { return count > 0; }
void Interrupts::forget() { count = 0; }

}  // namespace loom::talk
