// Promise: where ranks run and keep their host memory is as asked and changes no bit; what cannot be as asked is
//          refused or said once, and host memory that is too small is an error before anything is taken.
// World:   the built program; 4 steps of a tiny model; ranks as threads on this machine's cores.
#include <sched.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <regex>

#include "tests/support/program.h"

namespace loom::test {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// The first and the last core that this process may use.
std::pair<int, int> cores() {
  cpu_set_t mask;
  sched_getaffinity(0, sizeof(mask), &mask);
  int first = -1, last = -1;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &mask)) continue;
    if (first < 0) first = core;
    last = core;
  }
  return {first, last};
}

class HostProgram : public ::testing::Test {
 protected:
  // Loss and gradient norm of each step, and the bytes of the weights.
  struct Bits {
    std::string steps;
    std::string weights;
    bool operator==(const Bits&) const = default;
  };
  Bits bits_of(const Words& more, const Words& launcher = {}) {
    std::filesystem::remove_all(folder.path("out"));
    const Outcome outcome = folder.run(kFourSteps + Words{"--nproc-per-node", "2", "--save", "out"} + more, launcher);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    last = outcome;
    Bits bits;
    for (const auto& line : folder.metrics("out/metrics.jsonl")) {
      bits.steps += line.at("loss").dump() + " " + line.at("grad_norm").dump() + "\n";
    }
    bits.weights = folder.read("out/model.safetensors");
    return bits;
  }
  void offload(const std::string& more = {}) { folder.write("fsdp2.yaml", sharded + "offload_to_cpu: true\n" + more); }

  const ProgramFolder folder;
  const std::string sharded = folder.read("fsdp2.yaml");
  Outcome last;
};

TEST_F(HostProgram, BindingChangesNoBit) {
  const Bits unbound = bits_of({});
  ASSERT_FALSE(unbound.weights.empty());
  EXPECT_THAT(last.out, Not(HasSubstr("on cores")));
  const auto [first, last_core] = cores();
  const std::string ends = fmt::format("npu0:{0}-{0},npu1:{1}-{1}", first, last_core);
  EXPECT_EQ(bits_of({}, {"env", "CPU_AFFINITY_CONF=1," + ends}), unbound);
  EXPECT_THAT(last.out, HasSubstr(fmt::format("CPU_AFFINITY_CONF: rank 0 of this machine on cores {}", first)));
  EXPECT_THAT(last.out, HasSubstr(fmt::format("CPU_AFFINITY_CONF: rank 1 of this machine on cores {}", last_core)));
  EXPECT_EQ(bits_of({"--compute-threads", "3"}, {"env", "CPU_AFFINITY_CONF=2"}), unbound);
  EXPECT_EQ(bits_of({"--bind_core", "True"}), unbound);
  EXPECT_THAT(last.out, HasSubstr("--bind-core: rank 1 of this machine on cores "));
  EXPECT_EQ(
      bits_of({"--bind-core", fmt::format(R"({{"device1": ["{0}-{0}"]}})", first), "--device-executor", "inline"}),
      unbound);
  EXPECT_EQ(last.err, "");
}

TEST_F(HostProgram, PlacingAndPinningChangeNoBit) {
  const Bits on_device = bits_of({});
  offload();
  EXPECT_EQ(bits_of({}), on_device);
  EXPECT_EQ(last.err, "");
  offload("pin_memory: true\n");
  EXPECT_EQ(bits_of({"--numa-device", "h200"}, {"env", "CPU_AFFINITY_CONF=1"}), on_device);
}

// A machine with one node has not the nodes of a server's devices.
TEST_F(HostProgram, NodesOfAProfileThatTheMachineHasNotAreSaidOnce) {
  offload("pin_memory: true\n");
  const Outcome outcome = folder.run(kFourSteps + Words{"--nproc-per-node", "2", "--numa-device", "ascend-910b"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  if (std::filesystem::exists("/sys/devices/system/node/node6")) GTEST_SKIP() << "this machine has a node 6";
  if (!std::filesystem::exists("/sys/devices/system/node/node0")) GTEST_SKIP() << "the kernel has no NUMA";
  EXPECT_THAT(outcome.err, HasSubstr("warning: host memory: this machine has no NUMA node 6, the requested node of "
                                     "the rank's device; buffers are on node "));
}

TEST_F(HostProgram, PinsWhatTheLimitAllowsAndSaysOnceWhatItDoesNot) {
  offload("pin_memory: true\n");
  const Bits whole = bits_of({});
  // Root may lock all, whatever the limit.
  const Words as_others{"setpriv", "--bounding-set", "-ipc_lock", "--inh-caps", "-ipc_lock"};
  const Words limited = (geteuid() == 0 ? as_others : Words{}) + Words{"prlimit", "--memlock=16384:16384"};
  EXPECT_EQ(bits_of({}, limited), whole);
  EXPECT_TRUE(std::regex_match(
      last.err, std::regex("warning: host memory: pinned 8192 of the [0-9]+ bytes requested by a rank: this process "
                           "may lock 16384 bytes \\(ulimit -l 16, shared by 2 ranks\\); the rest is pageable; raise "
                           "ulimit -l\n")))
      << last.err;
}

TEST_F(HostProgram, HasAPoolThatHoldsAllOfAStep) {
  offload("pin_memory: true\n");
  const Outcome outcome = folder.run(kFourSteps + Words{"--nproc-per-node", "2"}, {"env", "SPDLOG_LEVEL=debug"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const char* rank : {"0", "1"}) {
    EXPECT_THAT(outcome.err, HasSubstr(fmt::format("debug: [rank {}] host memory: a pool of ", rank)));
  }
  EXPECT_THAT(outcome.err, Not(HasSubstr("has no place")));
}

TEST_F(HostProgram, RefusesMalformedAffinityWithItsGrammar) {
  const auto refused = [&](const Words& more, const std::string& conf) {
    const Outcome outcome = folder.run(kFourSteps + more, {"env", "CPU_AFFINITY_CONF=" + conf});
    EXPECT_EQ(outcome.exit_code, 2);
    return outcome.err;
  };
  EXPECT_EQ(refused({}, "1,npu0:3"),
            "shardloom: CPU_AFFINITY_CONF is 1,npu0:3, in which npu0:3 is not known; use 0 (off), 1 (all threads of a "
            "rank to its range) or 2 (each kind of thread to cores of its own), then as needed "
            ",npu<rank>:<first>-<last> ,npu_affine:<0|1> ,force:<0|1> ,lazy_bind:<0|1>, as in 1,npu0:0-3,npu1:4-7\n");
  EXPECT_EQ(refused({"--bind-core", "maybe"}, "0"),
            "shardloom: --bind-core is maybe; use True, False, or a JSON map of ranges as {\"device0\": [\"0-9\"], "
            "\"device1\": [\"10-19\"]}\n");
  EXPECT_EQ(refused({"--bind-core", "True"}, "1"),
            "shardloom: --bind-core is True, and CPU_AFFINITY_CONF in the environment is 1; keep one of them\n");
  EXPECT_THAT(
      refused({}, "1,npu0:4000-4000"),
      StartsWith("shardloom: CPU_AFFINITY_CONF binds npu0 to cores 4000, but this process may not use 4000; it may "
                 "use "));
  EXPECT_THAT(refused({"--numa-device", "nothing"}, ""), HasSubstr("--numa-device is nothing"));
}

// 16 bytes a parameter of more than a trillion: no machine has that, and nothing of it is taken.
TEST_F(HostProgram, RefusesAJobThatTheMachinesMemoryDoesNotHold) {
  offload();
  std::string model = folder.read("model.yaml");
  model.replace(model.find("vocab_size: 256"), 15, "vocab_size: 2000000000");
  model.replace(model.find("hidden_size: 16"), 15, "hidden_size: 512");
  folder.write("model.yaml", model);
  const Outcome outcome = folder.run(kFourSteps + Words{"--nproc-per-node", "2"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, StartsWith("shardloom: host memory: the 2 ranks of this machine keep "));
  EXPECT_THAT(outcome.err, HasSubstr(" are available ("));
  EXPECT_THAT(outcome.err,
              HasSubstr("use fewer ranks on this machine, more machines or a smaller model, or keep less on "
                        "the host (offload_to_cpu: false)\n"));
  EXPECT_EQ(folder.read("metrics.jsonl"), "");
}

// --- plans

constexpr const char* kLineOfHost = "  numa_node_of_device: [0, 0, 0, 0, 1, 1, 1, 1]\n";

class PlannedHost : public HostProgram {
 protected:
  // A plan on the H200 with so much memory in its host.
  Outcome plan(const std::string& memory_line, const Words& more = {}) {
    std::string profile = read_file(std::filesystem::path(LOOM_SOURCE_DIR) / "configs/devices/h200.yaml");
    profile = std::regex_replace(profile, std::regex("  memory_bytes: [^\n]*\n"), "");
    profile.insert(profile.find(kLineOfHost), memory_line);
    folder.write("device.yaml", profile);
    return folder.run(kPlanOfFour + Words{"--device", "device.yaml"} + more);
  }
};

TEST_F(PlannedHost, IsCheckedAgainstTheMemoryOfTheProfilesHost) {
  offload();
  const Outcome fits = plan("  memory_bytes: 1000000\n");
  EXPECT_EQ(fits.exit_code, 0) << fits.err;
  const auto memory = nlohmann::json::parse(fits.out).at("memory");
  EXPECT_EQ(memory.at("host_devices"), 4);
  EXPECT_EQ(memory.at("host_capacity_bytes"), 1000000);
  EXPECT_EQ(memory.at("host_fits"), true);
  const std::int64_t each = memory.at("host_bytes");
  EXPECT_EQ(plan(fmt::format("  memory_bytes: {}\n", 4 * each)).exit_code, 0);
  const Outcome small = plan(fmt::format("  memory_bytes: {}\n", 4 * each - 1));
  EXPECT_EQ(small.exit_code, 3);
  const auto json = nlohmann::json::parse(small.out);
  EXPECT_EQ(json.at("memory").at("host_fits"), false);
  EXPECT_EQ(json.at("memory").at("fits"), false);
  EXPECT_THAT(json.at("out_of_memory").get<std::string>(),
              StartsWith(fmt::format("out of host memory: each device keeps {} bytes ", each)));
  EXPECT_EQ(json.at("remedies").at(0).at("change"), "offload_to_cpu: false");
}

TEST_F(PlannedHost, SaysWhatOfTheHostIsNotKnown) {
  const Words words{"plan",       "--model-config", "model.yaml", "--use-torch-fsdp2", "--fsdp2-config-path",
                    "fsdp2.yaml", "--world-size",   "4",          "--seq-length",      "16",
                    "--device"};
  EXPECT_THAT(folder.run(words + Words{"h200"}).out, Not(HasSubstr("a host keeps")));
  offload();
  EXPECT_THAT(
      folder.run(words + Words{"ascend-910b"}).out,
      ContainsRegex("\na host keeps [0-9.]+ KiB for 4 devices; its memory is not known \\(host.memory_bytes of the "
                    "profile\\),\n    so this is not checked\n"));
  EXPECT_THAT(folder.run(words + Words{"h200"}).out,
              ContainsRegex("\na host keeps [0-9.]+ KiB of 2048.00 GiB for 4 devices: fits\n"));
}

TEST_F(PlannedHost, TakesLaunchScriptsWithBinding) {
  const Outcome outcome = plan("", {"--bind-core", "True"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(folder.run(kPlanOfFour + Words{"--bind-core", "3"}).exit_code, 2);
}

}  // namespace
}  // namespace loom::test
