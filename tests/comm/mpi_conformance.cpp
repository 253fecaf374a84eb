// Promise: process ranks get the results every ProcessGroup owes (conformance.h).
// World:   whatever mpirun starts.

#include <cstdio>
#include <fmt/format.h>

#include "engine/launch/run_ranks.h"
#include "tests/comm/conformance.h"

int main() {
  using namespace loom;
  launch::run_mpi_rank({.timeout = std::chrono::seconds(60)}, [](RankContext& context, comm::World& world) {
    for (const auto* cases : {&comm::conformance::cases(), &comm::conformance::grouping_cases()}) {
      for (const comm::conformance::Case& promise : *cases) {
        promise.run(world);
        if (context.rank() == 0) fmt::print("kept by {} processes: {}\n", world.size(), promise.name);
      }
    }
  });
  return 0;
}
