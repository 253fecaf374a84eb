#include "engine/core/error.h"
#include "engine/launch/run_ranks.h"

namespace loom::launch {

bool has_mpi() { return false; }

void run_mpi_rank(const comm::CommOptions&, const RankMain&) {
  config_error(
      "this build has no MPI; configure with -DLOOM_MPI=ON to run processes as ranks, or start the ranks as threads "
      "with --nproc-per-node");
}

}  // namespace loom::launch
