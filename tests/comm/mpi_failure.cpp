// Three processes of which rank 1 fails in the way the argument names; expect_failure.cmake checks how the job ends.

#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "engine/core/error.h"
#include "engine/launch/run_ranks.h"

namespace loom::comm {
namespace {

void gather(ProcessGroup& group, std::size_t bytes, const char* tag) {
  std::vector<std::byte> full(bytes * static_cast<std::size_t>(group.size()));
  const GatherPart part{full.data() + bytes * static_cast<std::size_t>(group.rank()), full.data(), bytes};
  group.all_gather(Lane(1), {&part, 1}, tag);
}

void fail_as(const std::string& way, ProcessGroup& group) {
  if (way == "throw") raise<DeviceError>("no room");
  if (way == "die") _exit(3);
  if (way == "stall") std::this_thread::sleep_for(std::chrono::minutes(10));
  if (way == "differ") gather(group, 32, "layers.3");
  // "return": it just ends
}

}  // namespace
}  // namespace loom::comm

int main(int, char** argv) {
  using namespace loom;
  const std::string way = argv[1];
  const bool hasty = way == "stall" || way == "return";
  const comm::CommOptions options{.timeout = hasty ? std::chrono::seconds(1) : std::chrono::minutes(1)};
  launch::run_mpi_rank(options, [&](RankContext& context, comm::World& world) {
    const auto group = world.everyone("shard");
    comm::gather(*group, 8, "layers.2");
    if (context.rank() == 1) return comm::fail_as(way, *group);
    comm::gather(*group, std::size_t{1} << 20, "layers.3");
  });
  return 0;
}
