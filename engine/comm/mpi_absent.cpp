#include "engine/comm/launch.h"
#include "engine/core/error.h"

namespace loom::comm {

void run_mpi_rank(const CommOptions&, const RankMain&) {
  config_error(
      "this build has no MPI; configure with -DLOOM_MPI=ON to run processes as ranks, or start the ranks as threads "
      "with "
      "--nproc-per-node");
}

}  // namespace loom::comm
