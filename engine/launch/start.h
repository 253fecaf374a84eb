// Start: how this process was started, by its environment: alone, its ranks threads; by an MPI launcher as one rank; or
// by torchrun or msrun on one host, where the first process runs all ranks as threads.
//
// Errors   ConfigError for a launcher's variable that holds no number of ranks, and for torchrun or msrun on several
//          hosts.
#pragma once

#include <optional>
#include <string>

namespace loom::launch {

struct Start {
  int cores = 1;                // that this process may run on
  int mpi_ranks = 0;            // started by mpirun or srun; 0 = no such launcher
  int mpi_local_ranks = 0;      // of these, on this node
  int mpi_rank = 0;             // of this process
  int mpi_local_rank = 0;       // of this process among the ranks on this node
  std::string affinity_conf{};  // CPU_AFFINITY_CONF; empty: not set
  // PYTORCH_ALLOC_CONF, or the older PYTORCH_NPU_ALLOC_CONF and PYTORCH_CUDA_ALLOC_CONF, and which of them it is.
  std::string alloc_conf{}, alloc_conf_from{};
  // Started by torchrun or msrun, a process for each rank (local_processes.h); 0 = no such launcher.
  int processes = 0;
  int process_rank = 0;
  std::string meeting{};  // what this run's processes have in common and other runs do not

  // Whether ranks are processes; else they are threads of this one.
  bool by_mpi() const { return mpi_ranks > 0; }
  bool by_processes() const { return processes > 0; }
  // The rank of this process; none if its ranks are threads.
  std::optional<int> rank() const { return by_mpi() ? std::optional(mpi_rank) : std::nullopt; }
  // Ranks of this node, of `ranks` in all.
  int local_ranks(int ranks) const;

  // From the affinity mask and the launcher's environment variables.
  static Start detect();
};

}  // namespace loom::launch
