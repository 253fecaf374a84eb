// LaunchContext: what the environment says of this process, before any flag is read.
//
// Errors   ConfigError for a launcher's variable that holds no number of ranks.
#pragma once

#include <string>

namespace loom::launch {

struct LaunchContext {
  int cores = 1;                // that this process may run on
  int mpi_ranks = 0;            // started by mpirun or srun; 0 = no such launcher, ranks are threads of this process
  int mpi_local_ranks = 0;      // of these, on this node
  int mpi_rank = 0;             // of this process
  int mpi_local_rank = 0;       // of this process among those on this node
  std::string affinity_conf{};  // CPU_AFFINITY_CONF; empty: not set

  // Ranks of this node, of `ranks` in all.
  int local_ranks(int ranks) const;

  // From the affinity mask and the launcher's environment variables.
  static LaunchContext detect();
};

}  // namespace loom::launch
