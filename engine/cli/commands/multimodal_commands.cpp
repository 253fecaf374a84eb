#include <fmt/format.h>

#include "engine/cli/commands/optional_commands.h"
#include "engine/core/log.h"
#include "engine/core/shown_text.h"
#include "engine/launch/stop_signals.h"
#include "engine/multimodal/llava_converter.h"

namespace loom::cli {
namespace {

std::string samples(std::int64_t count) { return fmt::format("{} sample{}", count, count == 1 ? "" : "s"); }

void stop_if_asked() {
  const int signal = launch::StopSignals::received();
  if (signal == 0) return;
  throw launch::Interrupted(signal, fmt::format("stopped by {}; nothing was written", launch::signal_name(signal)));
}

}  // namespace

std::optional<int> run_multimodal(const std::any& arguments, std::ostream& out) {
  const auto* conversion = std::any_cast<multimodal::LlavaConversion>(&arguments);
  if (conversion == nullptr) return std::nullopt;
  const launch::StopSignals signals;
  const multimodal::LlavaSummary summary = multimodal::convert_llava(*conversion, stop_if_asked);
  if (summary.skipped > 0) {
    std::vector<std::string> first;
    for (const std::string& path : summary.first_skipped) first.push_back(escaped(path));
    const bool more = summary.skipped > static_cast<std::int64_t>(first.size());
    log_warning("left out {}, whose picture is not there: {}{}", samples(summary.skipped), fmt::join(first, ", "),
                more ? ", ..." : "");
  }
  out << fmt::format("wrote {}: {}, {} without a picture\n", escaped(conversion->output_json_path.string()),
                     samples(summary.written), summary.without_image);
  return 0;
}

}  // namespace loom::cli
