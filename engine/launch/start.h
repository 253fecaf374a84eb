// Start: how this process was started, by its environment: alone, its ranks threads; by a launcher as one rank; or by
// torchrun or msrun on one host, where the first process runs all ranks as threads.
//
// Precedence  the first of these that says rank and number of ranks; the others are not read:
//               torchrun    RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE
//               msrun       RANK_ID, RANK_SIZE, DEVICE_ID, LOCAL_WORLD_SIZE with MS_ROLE=MS_WORKER
//               Open MPI    OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE
//               hydra       PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS (MPICH, Intel MPI)
//               Slurm       SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID, SLURM_TASKS_PER_NODE in a step of srun
//             describe() shows it, and --log-level debug prints it.
// Carrier     Open MPI's and hydra's ranks use MPI, or TCP in a build without MPI; all others TCP.
// Meeting     of TCP: MASTER_ADDR and MASTER_PORT; msrun's MS_SCHED_HOST and MS_SCHED_PORT; in Slurm the first host of
//             the step and port 15000 + job id mod 20000.
//             GLOO_SOCKET_IFNAME: the interface that the others connect to; SHARDLOOM_SECRET: greeting.h;
//             SHARDLOOM_P2P_DISABLE=1: ranks of one machine do not read each other's memory.
// Errors      ConfigError for a launcher's variable that holds no number of ranks, and where TCP has no meeting point.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/comm/tcp/tcp_job.h"

namespace loom::launch {

// What carries messages between processes; kFirst: nothing, the first process runs all ranks as threads.
enum class Carrier : std::uint8_t { kMpi, kTcp, kFirst };

struct Start {
  int cores = 1;            // that this process may run on
  int processes = 0;        // that a launcher started, one for each rank; 0 = no launcher
  int local_processes = 0;  // of these, on this node; 0: not known
  int process = 0;          // this one among all, and on this node
  int local_process = 0;
  std::string affinity_conf{};  // CPU_AFFINITY_CONF; empty: not set
  // PYTORCH_ALLOC_CONF, or the older PYTORCH_NPU_ALLOC_CONF and PYTORCH_CUDA_ALLOC_CONF, and which of them it is.
  std::string alloc_conf{}, alloc_conf_from{};
  Carrier carrier = Carrier::kMpi;
  std::string launcher{};     // "torchrun"; empty: none
  std::string meeting{};      // kFirst: what this run's processes have in common and other runs do not
  comm::tcp::TcpJob tcp{};    // kTcp
  bool is_scheduler = false;  // msrun's process that is no rank, where the ranks meet

  // Whether ranks are processes; else they are threads of this one.
  bool ranks_are_processes() const { return processes > 0 && carrier != Carrier::kFirst; }
  bool first_runs_all() const { return processes > 0 && carrier == Carrier::kFirst; }
  // The rank of this process; none if its ranks are threads.
  std::optional<int> rank() const { return ranks_are_processes() ? std::optional(process) : std::nullopt; }
  // Ranks of this node, of `ranks` in all.
  int local_ranks(int ranks) const;
  // One line on what was found, and by which variables.
  std::string describe() const;

  // From the affinity mask and the launcher's environment variables.
  static Start detect();
};

// The first host of a Slurm list: "n01" of "n[01-02,5],m3".
std::string first_host(std::string_view node_list);
// The tasks of each node: 4, 4, 3 of "4(x2),3". Empty: not of that form.
std::vector<int> tasks_per_node(std::string_view text);

}  // namespace loom::launch
