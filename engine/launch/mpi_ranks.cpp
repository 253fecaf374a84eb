#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <utility>

#include "engine/comm/mpi/mpi.h"
#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/launch/failure_text.h"
#include "engine/launch/run_ranks.h"
#include "engine/launch/stop_signals.h"

namespace loom::launch {
namespace {

// Tells the peers and the reader, then ends the job.
[[noreturn]] void end_in_failure(comm::mpi::MpiTransport& transport, const std::string& message) {
  transport.fail(message);
  const std::string shown = shown_message(message);
  const bool says_who = shown.starts_with("[rank ");
  std::fputs((says_who ? shown + "\n" : fmt::format("[rank {}] {}\n", transport.rank(), shown)).c_str(), stderr);
  std::fflush(nullptr);
  transport.abort_job();
}

}  // namespace

void run_mpi_rank(const comm::CommOptions& options, const RankMain& main) {
  setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);  // the few blocking calls at start and end must not hold a core
  const auto transport = std::make_shared<comm::mpi::MpiTransport>(options.timeout);
  std::exception_ptr stopped;
  try {
    comm::mpi::MpiWorld world(transport);
    {
      RankContext context(transport->rank(), transport->size());
      const RankScope scope(context);
      try {
        main(context, world);
      } catch (const Interrupted&) {
        stopped = std::current_exception();
      }
    }
    world.end();
  } catch (const std::exception& error) {
    end_in_failure(*transport, failure_text(error));
  } catch (...) {
    end_in_failure(*transport, "an exception of unknown type");
  }
  if (!stopped) return;
  // A launcher that got the signal itself is ending the job and answers MPI_Finalize no more.
  transport->skip_finalise();
  std::rethrow_exception(stopped);
}

}  // namespace loom::launch
