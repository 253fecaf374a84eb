#include "engine/launch/stop_signals.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <ctime>

namespace loom::launch {
namespace {

constexpr std::int64_t kSecond_ns = 1'000'000'000;

// All that the handler touches.
std::atomic<int> first_signal{0};
std::atomic<std::int64_t> first_at_ns{0};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<std::int64_t>::is_always_lock_free);

std::int64_t now_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * kSecond_ns + now.tv_nsec;
}

const char* text_of(int number) {
  return number == SIGINT ? "SIGINT: the run ends after this step; a second SIGINT ends it at once\n"
                          : "SIGTERM: the run ends after this step; a second SIGTERM ends it at once\n";
}

// Only calls that are allowed in a handler.
void note(int number) {
  const int kept_errno = errno;
  int none = 0;
  if (first_signal.compare_exchange_strong(none, number)) {
    first_at_ns = now_ns();
    const char* const text = text_of(number);
    if (::write(STDERR_FILENO, text, std::strlen(text)) < 0) {
      // Nobody is there to be told.
    }
  } else if (now_ns() - first_at_ns >= kSecond_ns) {
    ::signal(number, SIG_DFL);
    ::raise(number);  // delivered when this handler returns
  }
  errno = kept_errno;
}

}  // namespace

StopSignals::StopSignals() {
  first_signal = 0;
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    ::sigaction(kSignals[i], nullptr, &before_[i]);
    if (before_[i].sa_handler == SIG_IGN) continue;
    struct sigaction action {};
    action.sa_handler = note;
    action.sa_flags = SA_RESTART;
    ::sigemptyset(&action.sa_mask);
    ::sigaction(kSignals[i], &action, nullptr);
  }
}

StopSignals::~StopSignals() {
  for (std::size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], &before_[i], nullptr);
}

int StopSignals::received() { return first_signal; }

std::string signal_name(int number) {
  const char* const name = ::sigabbrev_np(number);
  return name == nullptr ? fmt::format("signal {}", number) : std::string("SIG") + name;
}

}  // namespace loom::launch
