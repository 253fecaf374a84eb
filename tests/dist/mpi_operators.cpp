// Promise: operators on ranks as processes give what one rank gives that holds all parts (operator_cases.h).
// World:   whatever mpirun starts.

#include <cstdio>
#include <fmt/format.h>
#include <thread>

#include "engine/core/error.h"
#include "tests/dist/dist_ranks.h"
#include "tests/dist/operator_cases.h"

int main_of_dist_mpi_operators(int, char**) {
  using namespace loom;
  launch::run_mpi_rank({.timeout = std::chrono::seconds(60)}, [](RankContext& context, comm::World& world) {
    device::Device::install(context, {});
    const dist::Channel channel{world.everyone("ep")};
    for (const dist::Case& of : dist::cases()) {
      const dist::Outcome actual = dist::on_this_rank(of, channel);
      dist::Outcome expected;
      std::thread([&] {
        expected = dist::on_one_rank(of, world.size())[static_cast<std::size_t>(world.rank())];
      }).join();
      const double distance = dist::distance(actual, expected);
      if (!(distance <= dist::kTolerance)) raise<ModelError>("{}: differs by {} from one rank", of.name, distance);
      if (world.rank() == 0) fmt::print("kept by {} processes: {}\n", world.size(), of.name);
    }
  });
  return 0;
}
