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
  return start;
}

int Start::local_ranks(int ranks) const {
  if (!by_mpi()) return ranks;
  return mpi_local_ranks > 0 ? mpi_local_ranks : mpi_ranks;
}

}  // namespace loom::launch
