// Promise: ranks that are processes get the results every ProcessGroup owes (conformance.h).
// World:   whatever started this process, by MPI or TCP (engine/launch/start.h). With the argument "hosts" on several
//          hosts, which share no memory.

#include <cstdio>
#include <fmt/format.h>
#include <string_view>

#include "engine/launch/run_ranks.h"
#include "tests/comm/conformance.h"

int main_of_comm_process_conformance(int argc, char** argv) {
  using namespace loom;
  const bool several_hosts = argc > 1 && std::string_view(argv[1]) == "hosts";
  const launch::Start start = launch::Start::detect();
  launch::run(start, 1, {.timeout = std::chrono::seconds(60)}, [&](RankContext& context, comm::World& world) {
    for (const auto* cases : {&comm::conformance::cases(), &comm::conformance::grouping_cases()}) {
      for (const comm::conformance::Case& promise : *cases) {
        if (several_hosts && promise.on_one_machine) continue;
        promise.run(world);
        if (context.rank() == 0) fmt::print("kept by {} processes: {}\n", world.size(), promise.name);
      }
    }
  });
  return 0;
}
