#include "engine/cli/commands/convert_command.h"

#include <unistd.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "engine/cli/bytes_progress.h"
#include "engine/core/log.h"
#include "engine/core/shown_text.h"
#include "engine/launch/stop_signals.h"
#include "engine/log/progress.h"

namespace loom::cli {
namespace {

constexpr std::size_t kMostWarnings = 5;

std::string name_of(const std::optional<DType>& dtype) { return std::string(dtype ? name(*dtype) : "its dtype"); }

void warn_of_overflow(const std::vector<checkpoint::Overflow>& overflows, const std::optional<DType>& dtype) {
  std::int64_t elements = 0;
  std::string names;
  for (std::size_t i = 0; i < overflows.size(); ++i) {
    elements += overflows[i].elements;
    if (i < kMostWarnings)
      names += fmt::format("{}'{}' ({})", i == 0 ? "" : ", ", overflows[i].name, overflows[i].elements);
  }
  if (elements == 0) return;
  logger().warn("--dtype {}: {} values are too large for it and became inf: {}{}; bf16 and fp32 hold larger values",
                name_of(dtype), elements, names, overflows.size() > kMostWarnings ? ", ..." : "");
}

std::optional<DType> dtype_of(const checkpoint::DcpToDcp&) { return std::nullopt; }
template <class Options>
std::optional<DType> dtype_of(const Options& options) {
  return options.dtype;
}

}  // namespace

void run_convert(const ConvertArguments& arguments, std::ostream& out) {
  if (!arguments.without_effect.empty()) {
    logger().warn("without effect here: {}", fmt::join(arguments.without_effect, " "));
  }
  const launch::StopSignals signals;
  checkpoint::Converted done;
  double seconds = 0;
  {
    BytesProgress progress(out, log::is_terminal(STDOUT_FILENO), log::steady_clock_ns);
    const checkpoint::CopyWatcher watch = [&progress](std::uint64_t done_bytes, std::uint64_t all_bytes) {
      progress.update(done_bytes, all_bytes);
      const int signal = launch::StopSignals::received();
      if (signal == 0) return;
      throw launch::Interrupted(signal, fmt::format("stopped by {}; nothing was written", launch::signal_name(signal)));
    };
    done = std::visit([&](const auto& options) { return convert(options, watch); }, arguments.conversion);
    seconds = static_cast<double>(progress.elapsed_ns()) / 1e9;
  }
  std::visit([&](const auto& options) { warn_of_overflow(done.overflows, dtype_of(options)); }, arguments.conversion);
  out << fmt::format("wrote {}: {} tensors, {} bytes in {} file{}, {:.1f} s ({}/s){}\n", escaped(done.path.string()),
                     done.tensors, done.bytes, done.files, done.files == 1 ? "" : "s", seconds,
                     bytes_text(static_cast<double>(done.bytes) / std::max(seconds, 1e-9)),
                     done.left_out == 0 ? "" : fmt::format("; {} other items stay out", done.left_out));
}

}  // namespace loom::cli
