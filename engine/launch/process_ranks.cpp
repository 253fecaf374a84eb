#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "engine/comm/messages/message_world.h"
#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/launch/error_file.h"
#include "engine/launch/failure_text.h"
#include "engine/launch/run_ranks.h"
#include "engine/launch/stop_signals.h"

namespace loom::launch {
namespace {

// Tells the peers and the reader, then ends the job.
[[noreturn]] void end_in_failure(comm::messages::Transport& transport, const std::string& message) {
  transport.fail(message);
  const std::string shown = shown_message(message);
  const bool says_who = shown.starts_with("[rank ");
  std::fputs((says_who ? shown + "\n" : fmt::format("[rank {}] {}\n", transport.rank(), shown)).c_str(), stderr);
  write_error_file(shown);
  std::fflush(nullptr);
  transport.abort_job();
  std::_Exit(1);
}

}  // namespace

void run_rank_of(comm::messages::Transport& transport, const RankMain& main) {
  std::exception_ptr stopped;
  try {
    comm::messages::MessageWorld world(transport);
    {
      RankContext context(transport.rank(), transport.size());
      const RankScope scope(context);
      try {
        main(context, world);
      } catch (const Interrupted&) {
        stopped = std::current_exception();
      }
    }
    world.end();
  } catch (const std::exception& error) {
    end_in_failure(transport, failure_text(error));
  } catch (...) {
    end_in_failure(transport, "an exception of unknown type");
  }
  if (!stopped) return;
  transport.skip_farewell();  // a launcher that got the signal itself is ending the job
  std::rethrow_exception(stopped);
}

}  // namespace loom::launch
