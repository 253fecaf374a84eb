#include "engine/launch/start.h"

#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <initializer_list>
#include <string_view>
#include <thread>

#include "engine/core/error.h"
#include "engine/core/parse_number.h"

namespace loom::launch {
namespace {

int environment_number(std::initializer_list<const char*> names, int least = 1) {
  for (const char* name : names) {
    const char* found = std::getenv(name);
    if (found == nullptr) continue;
    const std::string_view text = found;
    const auto number = parse_number<int>(text);
    if (!number || *number < least) {
      config_error("the environment variable {} is '{}', expected a {}", name, text,
                   least == 0 ? "rank" : "number of ranks");
    }
    return *number;
  }
  return 0;
}

int usable_cores() {
  cpu_set_t mask;
  if (sched_getaffinity(0, sizeof(mask), &mask) == 0) return std::max(1, CPU_COUNT(&mask));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

std::string text_of(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const char* found = std::getenv(name);
    if (found != nullptr) return found;
  }
  return {};
}

// A process for each rank, as RANK, WORLD_SIZE and LOCAL_RANK say; msrun has names of its own.
void detect_processes(Start& start) {
  const bool by_msrun = text_of({"MS_ROLE"}) == "MS_WORKER" && std::getenv("RANK") == nullptr;
  const char* const rank = by_msrun ? "RANK_ID" : "RANK";
  const char* const size = by_msrun ? "RANK_SIZE" : "WORLD_SIZE";
  const char* const local = by_msrun ? "DEVICE_ID" : "LOCAL_RANK";
  if (start.by_mpi() || text_of({rank}).empty() || text_of({local}).empty()) return;
  const int processes = environment_number({size});
  if (processes < 2) return;
  start.processes = processes;
  start.process_rank = environment_number({rank}, 0);
  const int here = std::getenv("LOCAL_WORLD_SIZE") == nullptr ? processes : environment_number({"LOCAL_WORLD_SIZE"});
  if (here != processes || environment_number({local}, 0) != start.process_rank) {
    config_error(
        "{} is {}, {} is {} and {} is {} in the environment: torchrun and msrun work on one host only; start ranks on "
        "several hosts with mpirun -n {}",
        rank, text_of({rank}), local, text_of({local}), size, processes, processes);
  }
  start.meeting = text_of({"MASTER_PORT", "MS_SCHED_PORT"});
  if (start.meeting.empty()) return;
  start.meeting += "." + text_of({"TORCHELASTIC_RESTART_COUNT"}) + "." + text_of({"TORCHELASTIC_RUN_ID"});
}

}  // namespace

Start Start::detect() {
  const char* const affinity = std::getenv("CPU_AFFINITY_CONF");
  Start start{.cores = usable_cores(),
              .mpi_ranks = environment_number({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}),
              .mpi_local_ranks = environment_number({"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"}),
              .mpi_rank = environment_number({"OMPI_COMM_WORLD_RANK", "PMI_RANK"}, 0),
              .affinity_conf = affinity == nullptr ? "" : affinity};
  const bool says_local =
      std::getenv("OMPI_COMM_WORLD_LOCAL_RANK") != nullptr || std::getenv("MPI_LOCALRANKID") != nullptr;
  start.mpi_local_rank = says_local ? environment_number({"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"}, 0)
                                    : start.mpi_rank % start.local_ranks(1);
  for (const char* name : {"PYTORCH_ALLOC_CONF", "PYTORCH_NPU_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}) {
    if (start.alloc_conf.empty() && !text_of({name}).empty()) {
      start.alloc_conf = text_of({name});
      start.alloc_conf_from = name;
    }
  }
  detect_processes(start);
  return start;
}

int Start::local_ranks(int ranks) const {
  if (!by_mpi()) return ranks;
  return mpi_local_ranks > 0 ? mpi_local_ranks : mpi_ranks;
}

}  // namespace loom::launch
