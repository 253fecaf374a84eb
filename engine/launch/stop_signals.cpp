#include "engine/launch/stop_signals.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <string_view>

namespace loom::launch {
namespace {

constexpr std::int64_t kSecond_ns = 1'000'000'000;

// All that the handler touches.
std::atomic<int> first_signal{0};
std::array<std::atomic<std::int64_t>, kStopSignals.size()> first_at_ns{};  // of each; 0: it has not come
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<std::int64_t>::is_always_lock_free);

std::int64_t now_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * kSecond_ns + now.tv_nsec;
}

// One line, with calls that are allowed in a handler.
void say(int number) {
  const std::string_view name = ::sigabbrev_np(number);
  std::array<char, 96> line{};
  char* end = line.data();
  for (const std::string_view part :
       {std::string_view("SIG"), name, std::string_view(": the run ends after this step; a second SIG"), name,
        std::string_view(" ends it at once\n")}) {
    end = std::copy(part.begin(), part.end(), end);
  }
  if (::write(STDERR_FILENO, line.data(), static_cast<std::size_t>(end - line.data())) < 0) {
    // Nobody reads it.
  }
}

// Only calls that are allowed in a handler.
void note(int number) {
  const int kept_errno = errno;
  const auto at = static_cast<std::size_t>(std::ranges::find(kStopSignals, number) - kStopSignals.begin());
  std::int64_t before_ns = 0;
  int none = 0;
  if (first_at_ns[at].compare_exchange_strong(before_ns, now_ns())) {
    if (first_signal.compare_exchange_strong(none, number)) say(number);
  } else if (now_ns() - before_ns >= kSecond_ns) {
    ::signal(number, SIG_DFL);
    ::raise(number);  // delivered when this handler returns
  }
  errno = kept_errno;
}

}  // namespace

StopSignals::StopSignals() {
  first_signal = 0;
  for (auto& at_ns : first_at_ns) at_ns = 0;
  for (std::size_t i = 0; i < kStopSignals.size(); ++i) {
    ::sigaction(kStopSignals[i], nullptr, &before_[i]);
    if (before_[i].sa_handler == SIG_IGN) continue;
    struct sigaction action {};
    action.sa_handler = note;
    action.sa_flags = SA_RESTART;
    ::sigemptyset(&action.sa_mask);
    ::sigaction(kStopSignals[i], &action, nullptr);
  }
}

StopSignals::~StopSignals() {
  for (std::size_t i = 0; i < kStopSignals.size(); ++i) ::sigaction(kStopSignals[i], &before_[i], nullptr);
}

int StopSignals::received() { return first_signal; }

std::string signal_name(int number) {
  const char* const name = ::sigabbrev_np(number);
  return name == nullptr ? fmt::format("signal {}", number) : std::string("SIG") + name;
}

}  // namespace loom::launch
