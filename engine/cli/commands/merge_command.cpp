#include "engine/cli/commands/merge_command.h"

#include <unistd.h>

#include <algorithm>
#include <fmt/format.h>

#include "engine/cli/bytes_progress.h"
#include "engine/core/shown_text.h"
#include "engine/launch/stop_signals.h"
#include "engine/log/progress.h"

namespace loom::cli {

void run_merge(const MergeArguments& arguments, std::ostream& out) {
  const launch::StopSignals signals;
  checkpoint::Merged done;
  {
    BytesProgress progress(out, log::is_terminal(STDOUT_FILENO), log::steady_clock_ns);
    done = checkpoint::merge(arguments.merge, [&progress](std::uint64_t done_bytes, std::uint64_t all_bytes) {
      progress.update(done_bytes, all_bytes);
      const int signal = launch::StopSignals::received();
      if (signal == 0) return;
      throw launch::Interrupted(signal, fmt::format("stopped by {}; nothing was written", launch::signal_name(signal)));
    });
  }
  out << fmt::format("wrote {}: {} tensors, {} bytes in {} file{}; {} with an adapter added{}\n",
                     escaped(done.path.string()), done.tensors, done.bytes, done.files, done.files == 1 ? "" : "s",
                     done.adapted, done.replaced == 0 ? "" : fmt::format(", {} replaced", done.replaced));
}

}  // namespace loom::cli
