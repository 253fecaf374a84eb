// LaunchContext: what the environment says of this process, before any flag is read.
//
// Errors   ConfigError for a launcher's variable that holds no number of ranks.
#pragma once

namespace loom::launch {

struct LaunchContext {
  int cores = 1;            // that this process may run on
  int mpi_ranks = 0;        // started by mpirun or srun; 0 = no such launcher, ranks are threads of this process
  int mpi_local_ranks = 0;  // of these, on this node
  int mpi_rank = 0;         // of this process

  // From the affinity mask and the launcher's environment variables.
  static LaunchContext detect();
};

}  // namespace loom::launch
