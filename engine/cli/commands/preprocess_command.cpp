#include "engine/cli/commands/preprocess_command.h"

#include <unistd.h>

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <utility>

#include "engine/core/log.h"
#include "engine/core/shown_text.h"
#include "engine/launch/stop_signals.h"
#include "engine/log/progress.h"

namespace loom::cli {
namespace {

constexpr std::int64_t kSecond_ns = 1'000'000'000;

std::string count(std::int64_t number, const char* what) {
  return fmt::format("{} {}{}", number, what, number == 1 ? "" : "s");
}

void warn_of_drops(const std::vector<data::DropCount>& dropped) {
  for (const data::DropCount& drop : dropped) {
    std::vector<std::string> places;
    for (const std::string& place : drop.places) places.push_back(escaped(place));
    const bool more = std::cmp_greater(drop.records, places.size());
    logger().warn("dropped {}: {}; {}{}{}", count(drop.records, "record"), data::words_of(drop.reason),
                  more ? "the first are " : "", fmt::join(places, ", "), more ? ", ..." : "");
  }
}

void print(const data::PreprocessSummary& summary, double seconds, std::ostream& out) {
  for (const data::WrittenPair& pair : summary.pairs) {
    out << fmt::format("wrote {}: {}, {}, {}\n", escaped(pair.prefix.string()), count(pair.documents, "document"),
                       count(pair.sequences, "sequence"), count(pair.tokens, "token"));
  }
  const auto bytes = static_cast<double>(summary.input_bytes);
  out << fmt::format("read {}{} in {:.1f} s ({}/s)\n",
                     summary.records == 0 ? "" : count(summary.records, "record") + ", ", bytes_text(bytes), seconds,
                     bytes_text(bytes / std::max(seconds, 1e-9)));
}

}  // namespace

PreprocessProgressLines::PreprocessProgressLines(std::ostream& out, bool terminal, std::int64_t log_interval,
                                                 std::function<std::int64_t()> clock)
    : out_(out),
      terminal_(terminal),
      log_interval_(log_interval),
      clock_(std::move(clock)),
      bar_(out, terminal, clock_),
      line_ns_(clock_()) {}

void PreprocessProgressLines::update(const data::PreprocessProgress& progress) {
  if (terminal_) return bar_.update(progress.done_bytes, progress.all_bytes);
  const std::int64_t passed = progress.records / log_interval_;
  const std::int64_t now = clock_();
  if (passed <= lines_due_ || now - line_ns_ < kSecond_ns) return;
  lines_due_ = passed;
  line_ns_ = now;
  out_ << fmt::format("{}, {} of {}\n", count(progress.records, "record"),
                      bytes_text(static_cast<double>(progress.done_bytes)),
                      bytes_text(static_cast<double>(progress.all_bytes)))
       << std::flush;
}

void run_preprocess(const PreprocessArguments& arguments, std::ostream& out) {
  if (!arguments.without_effect.empty()) {
    logger().warn("without effect here: {}", fmt::join(arguments.without_effect, " "));
  }
  const launch::StopSignals signals;
  data::PreprocessSummary summary;
  double seconds = 0;
  {
    PreprocessProgressLines progress(out, log::is_terminal(STDOUT_FILENO), arguments.options.log_interval,
                                     log::steady_clock_ns);
    summary = data::run_preprocess(arguments.options, [&progress](const data::PreprocessProgress& now) {
      progress.update(now);
      const int signal = launch::StopSignals::received();
      if (signal == 0) return;
      throw launch::Interrupted(signal, fmt::format("stopped by {}; nothing was written", launch::signal_name(signal)));
    });
    seconds = static_cast<double>(progress.elapsed_ns()) / kSecond_ns;
  }
  warn_of_drops(summary.dropped);
  print(summary, seconds, out);
}

}  // namespace loom::cli
