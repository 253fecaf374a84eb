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

// A ring of messages, then everyone with everyone; `bytes` go to the next rank, and 8 are expected from every rank.
void exchange(ProcessGroup& group, std::size_t bytes, const char* tag) {
  const int next = (group.rank() + 1) % group.size(), before = (group.rank() + group.size() - 1) % group.size();
  std::vector<std::byte> sent(64), received(64);
  group.send_recv(Lane(2), next, {sent.data(), 8}, before, {received.data(), 8}, tag);
  std::vector<Outgoing> sends(static_cast<std::size_t>(group.size()), {sent.data(), 8});
  sends[static_cast<std::size_t>(next)].bytes = bytes;
  std::vector<Incoming> receives;
  for (int peer = 0; peer < group.size(); ++peer) receives.push_back({received.data() + 8 * peer, 8});
  group.all_to_all(Lane(2), sends, receives, tag);
}

void fail_as(const std::string& way, ProcessGroup& group) {
  if (way == "throw") raise<DeviceError>("no room");
  if (way == "die") _exit(3);
  if (way.starts_with("stall")) std::this_thread::sleep_for(std::chrono::minutes(10));
  if (way == "differ") gather(group, 32, "layers.3");
  if (way == "message") group.send(Lane(1), 0, {}, "layers.3");
  if (way == "counts") exchange(group, 24, "layers.3");
  // "return": it just ends
}

}  // namespace
}  // namespace loom::comm

int main_of_comm_process_failure(int, char** argv) {
  using namespace loom;
  const std::string way = argv[1];
  const bool hasty = way.starts_with("stall") || way == "return";
  const comm::CommOptions options{.timeout = hasty ? std::chrono::seconds(1) : std::chrono::minutes(1)};
  launch::run(launch::Start::detect(), 3, options, [&](RankContext& context, comm::World& world) {
    const auto group = world.everyone("shard");
    comm::gather(*group, 8, "layers.2");
    if (context.rank() == 1) return comm::fail_as(way, *group);
    if (way == "counts" || way == "stall_ring") return comm::exchange(*group, 8, "layers.3");
    comm::gather(*group, std::size_t{1} << 20, "layers.3");
  });
  return 0;
}
