// Promise: on a machine of several NUMA nodes host memory is on the node it is asked for, or on the stated one where
//          that cannot be, and threads run on the cores they are bound to; the kernel itself says so.
// World:   this program is the first process of an emulated machine of "nodes=N" nodes with one core each
//          (numa_test.sh); it mounts what it needs, checks, prints a verdict and ends the machine.
#include <sched.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fmt/ranges.h>
#include <fstream>
#include <linux/capability.h>
#include <sstream>
#include <string>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <thread>

#include "engine/core/error.h"
#include "engine/core/rank_context.h"
#include "engine/core/thread_cores.h"
#include "engine/device/host_topology.h"
#include "engine/launch/affinity.h"
#include "offload/host_memory.h"
#include "offload/pinned_pool.h"

namespace loom {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

int failures = 0;

template <class A, class B>
void expect(std::string_view what, const A& found, const B& expected) {
  const bool holds = found == expected;
  fmt::print("{} {}: {}{}\n", holds ? "ok  " : "FAIL", what, found,
             holds ? std::string{} : fmt::format(", expected {}", expected));
  std::fflush(stdout);
  failures += holds ? 0 : 1;
}

int node_or_none(std::optional<int> node) { return node.value_or(-1); }

std::string file_text(const char* path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

bool write_file(const char* path, std::string_view text) {
  std::ofstream out(path);
  out << text << std::flush;
  return out.good();
}

// Kilobytes that this process has locked.
long locked_kib() {
  std::istringstream status(file_text("/proc/self/status"));
  for (std::string word; status >> word;) {
    long kib = 0;
    if (word == "VmLck:" && status >> kib) return kib;
  }
  return -1;
}

// The share of a buffer's pages that the kernel says are on `node`, in percent.
int percent_on(const offload::HostBuffer& buffer, int node) {
  std::memset(buffer.data(), 1, buffer.bytes());
  const offload::PageCount pages = offload::count_pages(buffer.data(), buffer.bytes(), node);
  return pages.seen == 0 ? -1 : 100 * pages.on_node / pages.seen;
}

class Checks {
 public:
  explicit Checks(int nodes) : nodes_(nodes) {}

  void run() {
    topology();
    for (int node = 0; node < nodes_; ++node) own_node(node);
    for (int node = 0; node < nodes_; ++node) asked_node(node);
    absent_node();
    ranks_on_their_nodes();
    refused_cores();
    full_node();
    locked_part();
    excluded_node();
  }

 private:
  bool has_memory(int node) const { return nodes_ != 4 || node != 3; }
  // The node that stands in for one without memory.
  int serving(int node) const { return has_memory(node) ? node : 2; }

  void topology() {
    const auto found = device::HostTopology::detect();
    expect("the kernel tells of NUMA", found.available, true);
    expect("nodes", static_cast<int>(found.nodes.size()), nodes_);
    for (const device::HostNode& node : found.nodes) {
      expect(fmt::format("cores of node {}", node.number), node.cores, std::vector<int>{node.number});
      expect(fmt::format("node {} gives memory", node.number), node.gives_memory, has_memory(node.number));
      const auto from = static_cast<std::size_t>(node.number);
      for (int to = 0; to < nodes_; ++to) {
        const int steps = std::abs(node.number - to);
        const int expected = steps == 0 ? 10 : steps == 1 ? 15 : 30;
        expect(fmt::format("distance from {} to {}", from, to), node.distances.at(static_cast<std::size_t>(to)),
               expected);
      }
    }
  }

  // Of a thread on the node's core.
  void own_node(int node) {
    std::thread([&] {
      bind_this_thread({node});
      const offload::HostBuffer small(3 * offload::kPage + 5);
      const offload::HostBuffer large(8 * kMiB, {.pin = true});
      expect(fmt::format("a buffer of a thread on core {} is for node", node), node_or_none(large.node()),
             serving(node));
      expect("its pages there, in %", percent_on(large, serving(node)), 100);
      expect("those of a small one", percent_on(small, serving(node)), 100);
      expect("it is pinned", large.pinned(), true);
    }).join();
  }

  // From a core of node 0.
  void asked_node(int node) {
    bind_this_thread({0});
    const offload::HostBuffer buffer(8 * kMiB, {.node = node});
    expect(fmt::format("a buffer for node {} asked on core 0 is for node", node), node_or_none(buffer.node()),
           serving(node));
    expect("its pages there, in %", percent_on(buffer, serving(node)), 100);
  }

  void absent_node() {
    const offload::HostBuffer buffer(kMiB, {.node = 9});
    expect("a buffer for node 9, which is not there, is for node", node_or_none(buffer.node()), 0);
  }

  void ranks_on_their_nodes() {
    std::vector<int> all;
    for (int core = 0; core < nodes_; ++core) all.push_back(core);
    bind_this_thread(all);
    const auto topology = device::HostTopology::detect();
    const auto placement = launch::place_ranks(launch::parse_affinity_conf("1,npu_affine:1"), topology, nodes_);
    for (int rank = 0; rank < nodes_; ++rank) {
      std::thread([&] {
        RankContext context(rank, nodes_);
        const RankScope scope(context);
        launch::bind_rank(context, placement.ranks.at(static_cast<std::size_t>(rank)));
        expect(fmt::format("rank {} runs on core", rank), sched_getcpu(), rank);
        const offload::HostBuffer buffer(kMiB, {.node = placement.ranks.at(static_cast<std::size_t>(rank)).node});
        expect("its pages on its node, in %", percent_on(buffer, serving(rank)), 100);
      }).join();
    }
    // The nodes of a device profile: rank 0 at the last node.
    const auto crossed = launch::place_ranks(launch::parse_affinity_conf("1,npu_affine:1"), topology, 1, {nodes_ - 1});
    expect("a device at the last node", core_ranges(crossed.ranks.at(0).range), core_ranges({nodes_ - 1}));
  }

  void refused_cores() {
    std::string text = "no error";
    try {
      launch::place_ranks(launch::parse_affinity_conf("1,npu0:0-9"), device::HostTopology::detect(), 1);
    } catch (const ConfigError& error) {
      text = error.what();
    }
    expect("cores that are not there", text,
           fmt::format("CPU_AFFINITY_CONF binds npu0 to cores 0-9, but this process may not use {}-9; it may use 0-{}; "
                       "name some of these",
                       nodes_, nodes_ - 1));
  }

  // More than node 1 has: the rest is on other nodes, nothing is lost.
  void full_node() {
    const std::size_t bytes = 264 * kMiB;
    offload::HostBuffer buffer(bytes, {.node = 1});
    std::memset(buffer.data(), 7, bytes);
    bool whole = true;
    for (std::size_t at = 0; at < bytes; at += offload::kPage) whole &= buffer.data()[at] == std::byte{7};
    const offload::PageCount pages = offload::count_pages(buffer.data(), bytes, 1);
    expect("a buffer larger than node 1 is whole", whole, true);
    expect("some of its pages are there", pages.on_node > 0, true);
    expect("and some are not", pages.on_node < pages.seen, true);
  }

  // Without the right to lock all, the limit of 1 MiB holds.
  void locked_part() {
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct data[2] = {};
    syscall(SYS_capget, &header, data);
    data[0].effective &= ~(1U << CAP_IPC_LOCK);
    expect("the right to lock all is given up", syscall(SYS_capset, &header, data), 0L);
    const rlimit limit{kMiB, kMiB};
    setrlimit(RLIMIT_MEMLOCK, &limit);
    auto& calls = offload::HostMemoryCalls::system();
    expect("the limit of locked memory", calls.lock_limit().value_or(0), kMiB);
    const auto pool = std::make_shared<offload::PinnedPool>(4 * kMiB, 1, /*ranks_of_process=*/2, calls);
    expect("of a pool for one of two ranks are pinned", pool->pinned_bytes(), kMiB / 2);
    expect("as the kernel counts, in KiB", locked_kib(), 512L);
    expect("pool on node", node_or_none(pool->node()), 1);
  }

  // A cpuset that takes node 1's memory away.
  void excluded_node() {
    bool made = mount("none", "/cgroup", "cgroup2", 0, nullptr) == 0;
    made = made && write_file("/cgroup/cgroup.subtree_control", "+cpuset") && mkdir("/cgroup/job", 0755) == 0;
    made = made && write_file("/cgroup/job/cpuset.mems", "0") && write_file("/cgroup/job/cgroup.procs", "1");
    expect("a cpuset with the memory of node 0 alone", made, true);
    const auto topology = device::HostTopology::detect();
    expect("node 1 gives memory then", topology.node(1) != nullptr && topology.node(1)->gives_memory, false);
    const offload::HostBuffer buffer(kMiB, {.node = 1});
    expect("a buffer for node 1 is then for node", node_or_none(buffer.node()), 0);
    expect("its pages there, in %", percent_on(buffer, 0), 100);
  }

  const int nodes_;
};

// libnuma reads /sys when it is loaded, so this program starts anew once that is mounted.
void mount_and_start_again(char* const* argv) {
  mount("none", "/proc", "proc", 0, nullptr);
  mount("none", "/sys", "sysfs", 0, nullptr);
  mount("none", "/dev", "devtmpfs", 0, nullptr);
  const char* const again[] = {argv[0], "mounted", nullptr};
  execv("/init", const_cast<char* const*>(again));
}

int nodes_of_command_line() {
  const std::string line = file_text("/proc/cmdline");
  const std::size_t at = line.find("nodes=");
  return at == std::string::npos ? 0 : std::atoi(line.c_str() + at + 6);
}

}  // namespace
}  // namespace loom

int main(int argc, char** argv) {
  if (getpid() != 1) {
    std::fputs("numa_guest: this program is the first process of a machine that numa_test.sh boots\n", stderr);
    return 2;
  }
  if (argc < 2 || std::strcmp(argv[1], "mounted") != 0) loom::mount_and_start_again(argv);
  try {
    loom::Checks(loom::nodes_of_command_line()).run();
  } catch (const std::exception& error) {
    fmt::print("FAIL {}\n", error.what());
    ++loom::failures;
  }
  fmt::print("VERDICT: {}\n", loom::failures == 0 ? "ok" : fmt::format("{} failed", loom::failures));
  std::fflush(nullptr);
  sleep(1);  // the serial line
  reboot(RB_AUTOBOOT);
}
