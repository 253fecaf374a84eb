#include "engine/launcher/failure_report.h"

#include <algorithm>
#include <fmt/format.h>
#include <sstream>

#include "engine/core/local_time.h"
#include "engine/core/shown_text.h"
#include "engine/launch/stop_signals.h"

namespace loom::launcher {
namespace {

constexpr std::size_t kMostListed = 8;

std::string time_text(std::int64_t unix_ms) {
  return fmt::format("{}.{:03}", local_time_text(unix_ms / 1000), unix_ms % 1000);
}

}  // namespace

std::string cause_of(const Failure& failure) {
  if (failure.signal != 0) return "signal " + launch::signal_name(failure.signal);
  return fmt::format("exit code {}", failure.exit_code);
}

std::string headline_of(const Failure& failure) {
  return fmt::format("rank {} (local rank {} on {}) ended with {}", failure.rank, failure.local_rank,
                     escaped(failure.host), cause_of(failure));
}

std::string failure_report(std::vector<Failure> failures, int restarts, int max_restarts) {
  if (failures.empty()) return "a worker failed";
  std::ranges::stable_sort(failures, {}, &Failure::unix_ms);
  const Failure& first = failures.front();
  std::string text = fmt::format("{} at {}", headline_of(first), time_text(first.unix_ms));
  if (max_restarts > 0) text += fmt::format("; {} of {} restarts were used", restarts, max_restarts);
  if (first.last_lines.empty()) text += "; look at its output";
  for (std::size_t i = 1; i < std::min(failures.size(), kMostListed + 1); ++i) {
    text += fmt::format("\n  then {} at {}", headline_of(failures[i]), time_text(failures[i].unix_ms));
  }
  if (failures.size() > kMostListed + 1) text += fmt::format("\n  and {} more", failures.size() - kMostListed - 1);
  if (first.last_lines.empty()) return text;
  text += fmt::format("\n  The last lines of stderr of rank {}:", first.rank);
  std::istringstream lines(first.last_lines);
  for (std::string line; std::getline(lines, line);) text += "\n    " + escaped(line);
  return text;
}

}  // namespace loom::launcher
