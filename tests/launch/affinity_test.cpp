// Promise: CPU_AFFINITY_CONF and --bind-core mean what they mean to torch_npu and msrun; malformed ones are refused
//          with the grammar, cores that a process may not use with those it may; a rank's threads are on its cores.
// World:   machines made of numbers; this machine's kernel for threads.
#include "engine/launch/affinity.h"

#include <sched.h>

#include <cstdlib>
#include <gmock/gmock.h>
#include <mutex>
#include <set>

#include "engine/core/error.h"
#include "engine/core/parallel.h"
#include "engine/core/rank_context.h"
#include "engine/device/device.h"
#include "engine/launch/start.h"
#include "tests/support/files.h"

namespace loom::launch {
namespace {

constexpr device::StreamId kGatherStream{2, "gather"};

using device::HostTopology;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

// `nodes` nodes of `cores` cores each; the cores of a node follow one another.
HostTopology machine(int nodes, int cores) {
  HostTopology made{.available = true};
  for (int node = 0; node < nodes; ++node) {
    device::HostNode& one = made.nodes.emplace_back();
    one.number = node;
    for (int core = 0; core < cores; ++core) one.cores.push_back(node * cores + core);
    for (int to = 0; to < nodes; ++to) one.distances.push_back(10 + 10 * std::abs(node - to));
  }
  return made;
}

// Each rank's range, as in "0-3 4-7".
std::string ranges(const Placement& placement) {
  std::string text;
  for (const RankCores& rank : placement.ranks) text += (text.empty() ? "" : " ") + core_ranges(rank.range);
  return text;
}

std::string ranges(std::string_view conf, const HostTopology& topology, int ranks,
                   const std::vector<int>& node_of_device = {}) {
  return ranges(place_ranks(parse_affinity_conf(conf), topology, ranks, node_of_device));
}

// --- the grammar

TEST(AffinityConf, OfNoTextOrMode0BindsNothing) {
  EXPECT_EQ(parse_affinity_conf("").mode, AffinityMode::kOff);
  EXPECT_EQ(parse_affinity_conf("0,npu0:0-3").mode, AffinityMode::kOff);
  const Placement placement = place_ranks(parse_affinity_conf("0,npu0:0-3"), machine(2, 4), 2);
  EXPECT_EQ(ranges(placement), "none none");
  EXPECT_THAT(placement.notes, IsEmpty());
}

TEST(AffinityConf, IsReadAsTheTuningGuideWritesIt) {
  const AffinityRequest one = parse_affinity_conf("1,npu0:0-1,npu1:2-5,npu1:7-8,npu3:6-6");
  EXPECT_EQ(one.mode, AffinityMode::kRange);
  EXPECT_THAT(one.cores_of_rank,
              ElementsAre(Pair(0, ElementsAre(0, 1)), Pair(1, ElementsAre(2, 3, 4, 5, 7, 8)), Pair(3, ElementsAre(6))));
  EXPECT_FALSE(one.npu_affine);
  const AffinityRequest two = parse_affinity_conf("mode:2,force:1,npu_affine:1,lazy_bind:0");
  EXPECT_EQ(two.mode, AffinityMode::kCores);
  EXPECT_TRUE(two.npu_affine);
  EXPECT_TRUE(two.force);
  EXPECT_EQ(parse_affinity_conf("1,lazy_bind:0").mode, AffinityMode::kRange);
}

TEST(AffinityConf, IsRefusedWithItsGrammar) {
  EXPECT_EQ(
      test::message_of<ConfigError>([] { parse_affinity_conf("1,npu0:0..3"); }),
      "CPU_AFFINITY_CONF is 1,npu0:0..3, in which npu0:0..3 is not known; use 0 (off), 1 (all threads of a rank to "
      "its range) or 2 (each kind of thread to cores of its own), then as needed ,npu<rank>:<first>-<last> "
      ",npu_affine:<0|1> ,force:<0|1> ,lazy_bind:<0|1>, as in 1,npu0:0-3,npu1:4-7");
  for (const std::string_view text : {"3",
                                      "-1",
                                      "x",
                                      "npu0:0-3",
                                      "1,",
                                      ",1",
                                      "1,npu:0-3",
                                      "1,npu0:3-0",
                                      "1,npu0:3",
                                      "1,npu0:0-3-5",
                                      "1,npu0:-3",
                                      "1,npu-1:0-1",
                                      "1,lazy_bind:2",
                                      "1,force:",
                                      "1,npu_affine",
                                      "1 ,npu0:0-3",
                                      "1,npu0:0-99999999999999999999",
                                      "1,npu0:0-70000",
                                      "1;npu0:0-3",
                                      "mode:",
                                      "1,npu0: 0-3"}) {
    EXPECT_THROW(parse_affinity_conf(text), ConfigError) << text;
  }
}

TEST(BindCore, IsTrueFalseOrAMapOfRanges) {
  EXPECT_EQ(parse_bind_core("True").mode, AffinityMode::kRange);
  EXPECT_THAT(parse_bind_core("True").cores_of_rank, IsEmpty());
  EXPECT_EQ(parse_bind_core("False").mode, AffinityMode::kOff);
  EXPECT_EQ(parse_bind_core("").mode, AffinityMode::kOff);
  const AffinityRequest map =
      parse_bind_core(R"({"device0": ["0-1", "4-5"], "device12": ["10-19"], "scheduler": ["0-0"]})");
  EXPECT_EQ(map.mode, AffinityMode::kRange);
  EXPECT_EQ(map.origin, "--bind-core");
  EXPECT_THAT(map.cores_of_rank, ElementsAre(Pair(0, ElementsAre(0, 1, 4, 5)),
                                             Pair(12, ElementsAre(10, 11, 12, 13, 14, 15, 16, 17, 18, 19))));
}

TEST(BindCore, IsRefusedWithItsGrammar) {
  EXPECT_EQ(
      test::message_of<ConfigError>([] { parse_bind_core(R"({"dev0": ["0-1"]})"); }),
      R"(--bind-core is {"dev0": ["0-1"]}, whose key dev0 is not a device; use True, False, or a JSON map of ranges as )"
      R"({"device0": ["0-9"], "device1": ["10-19"]})");
  EXPECT_EQ(
      test::message_of<ConfigError>([] { parse_bind_core(R"({"device0": ["0..3"]})"); }),
      R"(--bind-core is {"device0": ["0..3"]}, where "0..3" of device0 is not a range; use True, False, or a JSON map )"
      R"(of ranges as {"device0": ["0-9"], "device1": ["10-19"]})");
  for (const std::string_view text :
       {"yes", "1", "{", "[]", R"({"device0": "0-3"})", R"({"device0": []})", R"({"device0": [3]})",
        R"({"device": ["0-1"]})", R"({"device0": ["3-1"]})", R"({"device0": ["0-1"], "scheduler": 1})"}) {
    EXPECT_THROW(parse_bind_core(text), ConfigError) << text;
  }
}

// --- the ranges

TEST(Placement, DividesTheCoresEqually) {
  EXPECT_EQ(ranges("1", machine(2, 8), 4), "0-3 4-7 8-11 12-15");
  EXPECT_EQ(ranges("1", machine(1, 7), 2), "0-2 3-6");
  EXPECT_EQ(ranges("1", machine(1, 2), 4), "0 0 1 1");
}

TEST(Placement, TakesTheRangesThatAreNamed) {
  EXPECT_EQ(ranges("1,npu1:0-0,npu1:5-6", machine(2, 4), 2), "0-3 0,5-6");
  EXPECT_EQ(ranges(place_ranks(parse_bind_core(R"({"device0": ["6-7"]})"), machine(2, 4), 2)), "6-7 4-7");
}

TEST(Placement, WithNpuAffineTakesTheNodeOfTheDevice) {
  EXPECT_EQ(ranges("1,npu_affine:1", machine(2, 4), 4), "0-3 0-3 4-7 4-7");
  EXPECT_EQ(ranges("1,npu_affine:1", machine(2, 4), 3, {1, 0}), "4-7 0-3 4-7");
}

TEST(Placement, SaysTheNodeOfEachRanksMemory) {
  const Placement bound = place_ranks(parse_affinity_conf("1"), machine(2, 4), 2);
  EXPECT_EQ(bound.ranks.at(0).node, 0);
  EXPECT_EQ(bound.ranks.at(1).node, 1);
  // A profile's node counts for memory, whatever cores the rank has.
  EXPECT_EQ(place_ranks(parse_affinity_conf("1"), machine(2, 4), 2, {1, 0}).ranks.at(0).node, 1);
  EXPECT_EQ(place_ranks({}, machine(2, 4), 2, {1, 0}).ranks.at(1).node, 0);
  EXPECT_EQ(place_ranks({}, machine(2, 4), 2).ranks.at(0).node, std::nullopt);
}

TEST(Placement, OfMode2GivesEachKindOfThreadCoresOfItsOwn) {
  const auto threads = [](int cores) {
    const ThreadCores of = place_ranks(parse_affinity_conf("2"), machine(1, cores), 1).ranks.at(0).threads;
    return core_ranges(of.host) + " " + core_ranges(of.streams) + " " + core_ranges(of.compute);
  };
  EXPECT_EQ(threads(8), "0 1 2-7");
  EXPECT_EQ(threads(3), "0 1 2");
  EXPECT_EQ(threads(2), "0 1 1");
  EXPECT_EQ(threads(1), "0 0 0");
}

TEST(Placement, IsSaidRankByRank) {
  EXPECT_THAT(place_ranks(parse_affinity_conf("2,npu5:0-0"), machine(2, 4), 2).notes,
              ElementsAre("CPU_AFFINITY_CONF: rank 0 of this machine on cores 0-3 (host thread 0, streams 1, compute "
                          "threads 2-3), memory on NUMA node 0",
                          "CPU_AFFINITY_CONF: rank 1 of this machine on cores 4-7 (host thread 4, streams 5, compute "
                          "threads 6-7), memory on NUMA node 1",
                          "CPU_AFFINITY_CONF: 2 ranks run on this machine, so the cores of rank 5 are not used"));
}

TEST(Placement, RefusesAbsentCoresWithThoseThereAre) {
  EXPECT_EQ(test::message_of<ConfigError>([] { ranges("1,npu1:2-9", machine(2, 4), 2); }),
            "CPU_AFFINITY_CONF binds npu1 to cores 2-9, but this process may not use 8-9; it may use 0-7; name some of "
            "these");
  EXPECT_EQ(
      test::message_of<ConfigError>([] { place_ranks(parse_bind_core(R"({"device0": ["8-8"]})"), machine(2, 4), 1); }),
      "--bind-core binds device0 to cores 8, but this process may not use 8; it may use 0-7; name some of these");
}

TEST(Placement, WithForceTakesTheCoresThereAre) {
  EXPECT_EQ(ranges("1,force:1,npu0:6-9", machine(2, 4), 1), "6-7");
  EXPECT_THROW(ranges("1,force:1,npu0:8-9", machine(2, 4), 1), ConfigError);
}

TEST(Placement, RefusesANodeWithoutCoresOfThisProcess) {
  HostTopology topology = machine(2, 4);
  topology.nodes.at(1).cores = {};
  EXPECT_EQ(
      test::message_of<ConfigError>([&] { ranges("1,npu_affine:1", topology, 1, {1}); }),
      "CPU_AFFINITY_CONF has npu_affine:1, and the device of npu0 is at NUMA node 1, of which this process may use "
      "no core; it may use 0-3; name cores with npu0:<first>-<last>, or leave out npu_affine:1");
  EXPECT_EQ(ranges("1,npu_affine:1", topology, 2), "0-3 0-3");
}

TEST(HostTopologyOfThisMachine, HasTheCoresOfThisThread) {
  EXPECT_EQ(core_ranges(HostTopology::detect().cores()), core_ranges(cores_of_this_thread()));
}

TEST(NearestNode, IsTheFirstOfThoseAsNear) {
  HostTopology topology = machine(3, 1);
  EXPECT_EQ(topology.nearest_with_memory(1), 1);
  topology.nodes.at(1).gives_memory = false;
  EXPECT_EQ(topology.nearest_with_memory(1), 0);
  topology.nodes.at(0).gives_memory = false;
  EXPECT_EQ(topology.nearest_with_memory(1), 2);
  topology.nodes.at(2).gives_memory = false;
  EXPECT_EQ(topology.nearest_with_memory(1), std::nullopt);
  EXPECT_EQ(topology.nearest_with_memory(7), std::nullopt);
}

// --- which rank of the machine a process is

class LaunchedBy : public ::testing::Test {
 protected:
  void set(const char* name, const char* value) {
    ASSERT_EQ(std::getenv(name), nullptr) << name;
    setenv(name, value, 1);
    names_.push_back(name);
  }
  ~LaunchedBy() override {
    for (const char* name : names_) unsetenv(name);
  }

 private:
  std::vector<const char*> names_;
};

TEST_F(LaunchedBy, NobodyThreadsAreTheRanks) {
  set("CPU_AFFINITY_CONF", "1,npu0:0-0");
  const Start context = Start::detect();
  EXPECT_EQ(context.affinity_conf, "1,npu0:0-0");
  EXPECT_EQ(context.local_ranks(4), 4);
  EXPECT_EQ(context.local_process, 0);
}

TEST_F(LaunchedBy, OpenMpiSaysItsLocalRank) {
  set("OMPI_COMM_WORLD_SIZE", "8");
  set("OMPI_COMM_WORLD_LOCAL_SIZE", "4");
  set("OMPI_COMM_WORLD_RANK", "5");
  set("OMPI_COMM_WORLD_LOCAL_RANK", "3");
  const Start context = Start::detect();
  EXPECT_EQ(context.local_ranks(8), 4);
  EXPECT_EQ(context.local_process, 3);
}

TEST_F(LaunchedBy, ALauncherThatTellsNoLocalRankFillsMachinesInOrder) {
  set("PMI_SIZE", "8");
  set("PMI_RANK", "5");
  set("MPI_LOCALNRANKS", "4");
  EXPECT_EQ(Start::detect().local_process, 1);
}

// --- threads

// One rank on a thread of its own, bound.
template <class Body>
void on_bound_rank(const RankCores& cores, Body&& body) {
  std::thread([&] {
    RankContext context(0, 1);
    const RankScope scope(context);
    bind_rank(context, cores);
    body(context);
  }).join();
}

RankCores last_core_for_streams() {
  const std::vector<int> all = cores_of_this_thread();
  const std::vector<int> first{all.front()}, last{all.back()};
  return {.range = all, .threads = {.host = first, .streams = last, .compute = last}, .node = {}};
}

TEST(BoundRank, HasItsHostThreadAndItsStreamsOnTheirCores) {
  const RankCores cores = last_core_for_streams();
  on_bound_rank(cores, [&](RankContext& context) {
    EXPECT_EQ(cores_of_this_thread(), cores.threads.host);
    device::DeviceOptions options;
    options.executor = device::ExecutorKind::kThreaded;
    device::Device& device = device::Device::install(context, options);
    std::vector<int> found;
    device.stream(kGatherStream).submit({"look", "", {}, [&] { found = cores_of_this_thread(); }});
    device.synchronize();
    EXPECT_EQ(found, cores.threads.streams);
  });
}

TEST(BoundRank, HasItsComputeThreadsOnTheirCores) {
  const RankCores cores = last_core_for_streams();
  on_bound_rank(cores, [&](RankContext& context) {
    ComputePool& pool = context.slot<ComputePool>();
    pool.resize(2);
    const std::thread::id host = std::this_thread::get_id();
    std::mutex mutex;
    std::set<std::vector<int>> of_host, of_others;
    const auto others_came = [&] {
      const std::lock_guard lock(mutex);
      return !of_others.empty();
    };
    pool.run(64, [&](std::int64_t) {
      const std::vector<int> here = cores_of_this_thread();
      const bool is_host = std::this_thread::get_id() == host;
      {
        const std::lock_guard lock(mutex);
        (is_host ? of_host : of_others).insert(here);
      }
      // The host thread leaves tiles to the other one, on a loaded machine too.
      for (int ms = 0; is_host && !others_came() && ms < 20000; ++ms) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    });
    EXPECT_THAT(of_host, ElementsAre(cores.threads.host));
    EXPECT_THAT(of_others, ElementsAre(cores.threads.compute));
  });
}

TEST(BoundRank, WithoutCoresStaysWhereItIs) {
  const std::vector<int> before = cores_of_this_thread();
  on_bound_rank({}, [&](RankContext&) { EXPECT_EQ(cores_of_this_thread(), before); });
}

TEST(BoundThread, IsRefusedCoresThatAreNotThere) {
  const std::string all = core_ranges(cores_of_this_thread());
  EXPECT_EQ(test::message_of<DeviceError>([] { bind_this_thread({60000}); }),
            "the system refuses to bind a thread to cores 60000 (Invalid argument); it may use " + all +
                "; bind to some of these");
}

TEST(CoreRanges, AreWrittenAsTheyAreRead) {
  EXPECT_EQ(core_ranges({}), "none");
  EXPECT_EQ(core_ranges({3}), "3");
  EXPECT_EQ(core_ranges({0, 1, 2, 5, 7, 8}), "0-2,5,7-8");
}

}  // namespace
}  // namespace loom::launch
