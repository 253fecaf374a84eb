#include <cstdlib>

#include "engine/comm/mpi/mpi_transport.h"
#include "engine/launch/run_ranks.h"

namespace loom::launch {

bool has_mpi() { return true; }

void run_mpi_rank(const comm::CommOptions& options, const RankMain& main) {
  setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);  // the few blocking calls at start and end must not hold a core
  comm::mpi::MpiTransport transport(options.timeout);
  run_rank_of(transport, main);
}

}  // namespace loom::launch
