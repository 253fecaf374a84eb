// The environment of a worker: the launcher's own, with the variables of torchrun or msrun.
//
// torchrun  RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, GROUP_RANK, GROUP_WORLD_SIZE, ROLE_NAME, ROLE_RANK,
//           ROLE_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, TORCHELASTIC_RESTART_COUNT, _MAX_RESTARTS, _RUN_ID,
//           _USE_AGENT_STORE (True: the store at MASTER_ADDR is the coordinator's), _ERROR_FILE.
// msrun     MS_ROLE, MS_WORKER_NUM, MS_SCHED_HOST, MS_SCHED_PORT, MS_NODE_ID, MS_CLUSTER_TIMEOUT, DEVICE_ID, RANK_ID,
//           RANK_SIZE, and LOCAL_WORLD_SIZE, which msrun does not set; RANK, WORLD_SIZE and LOCAL_RANK are removed.
// Both      OMP_NUM_THREADS is 1 where it is not set and the node has several workers.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "engine/launcher/message.h"
#include "engine/launcher/options.h"

namespace loom::launcher {

// `meeting`: where the coordinator is, with its port. `error_file`: torchrun's alone.
std::vector<std::string> worker_environment(const Options& options, const Assigned& assigned, int local_rank,
                                            const comm::tcp::Address& meeting, const std::filesystem::path& error_file);
// Whether OMP_NUM_THREADS is set for the workers: for a line to the user.
bool sets_openmp_threads(const Options& options);

}  // namespace loom::launcher
