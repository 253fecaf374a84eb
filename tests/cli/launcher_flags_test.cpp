// Promise: the flags of torchrun and msrun mean what they mean there, the environment's PET_ variables come after them,
//          and the words of the program are passed on as they are.
// World:   command lines; no launcher starts. Programs are /bin/sh and shardloom's own commands.
#include <cstdlib>
#include <gmock/gmock.h>

#include "tests/cli/parsed.h"

namespace loom::cli {
namespace {

using launcher::Host;
using launcher::Milliseconds;
using launcher::NodeRange;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const Words kProgram{"/bin/sh", "-c", "--nnodes", "7"};

LauncherArguments launched(const Words& words) { return std::get<LauncherArguments>(parsed(words + kProgram)); }
launcher::Options torchrun(const Words& words) { return launched(Words{"torchrun"} + words).options; }
launcher::Options msrun(const Words& words) { return launched(Words{"msrun"} + words).options; }
std::string torchrun_refusal(const Words& words) { return refusal(Words{"torchrun"} + words + kProgram); }
std::string msrun_refusal(const Words& words) { return refusal(Words{"msrun"} + words + kProgram); }

class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
  ~Variable() { ::unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* const name_;
};

// --- torchrun

TEST(TorchrunFlags, DefaultsAreThoseOfTorchrun) {
  const launcher::Options options = torchrun({});
  EXPECT_EQ(options.nodes, (NodeRange{1, 1}));
  EXPECT_EQ(options.workers, 1);
  EXPECT_EQ(options.meeting.host, "127.0.0.1");
  EXPECT_EQ(options.meeting.port, 29500);
  EXPECT_EQ(options.coordinator, Host::kThis);
  EXPECT_EQ(options.run_id, "none");
  EXPECT_EQ(options.max_restarts, 0);
  EXPECT_EQ(options.times.join, Milliseconds(600'000));
  EXPECT_EQ(options.version, LOOM_VERSION_OF_TEST);
}

TEST(TorchrunFlags, TheProgramsWordsArePassedOnAsTheyAre) {
  EXPECT_THAT(torchrun({"--nnodes=2"}).program, ElementsAre("/bin/sh", "-c", "--nnodes", "7"));
  EXPECT_EQ(torchrun({"--nnodes=2"}).nodes, (NodeRange{2, 2}));
  const auto own = std::get<LauncherArguments>(parsed({"torchrun", "--", "train", "--nproc_per_node", "2", "--help"}));
  ASSERT_EQ(own.options.program.size(), 5U);
  EXPECT_EQ(own.options.program[1], "train");
  EXPECT_EQ(own.options.program[2], "--nproc_per_node");
  EXPECT_THAT(torchrun_refusal({"--no-python", "-m"}), HasSubstr("exclude each other"));
  EXPECT_THAT(refusal({"torchrun"}), HasSubstr("no program is given"));
  EXPECT_THAT(refusal({"torchrun", "/no/such"}), HasSubstr("/no/such does not exist"));
}

TEST(TorchrunFlags, DashesAndUnderscoresMeanTheSame) {
  EXPECT_EQ(torchrun({"--nproc_per_node", "3"}).workers, 3);
  EXPECT_EQ(torchrun({"--nproc-per-node", "3"}).workers, 3);
  EXPECT_EQ(torchrun({"--nproc_per-node=3"}).workers, 3);
}

TEST(TorchrunFlags, NodesAreANumberOrARange) {
  EXPECT_EQ(torchrun({"--nnodes", "2:4"}).nodes, (NodeRange{2, 4}));
  EXPECT_THAT(torchrun_refusal({"--nnodes", "0"}), HasSubstr("--nnodes is 0; use a number of nodes"));
  EXPECT_THAT(torchrun_refusal({"--nnodes", "4:2"}), HasSubstr("MIN is above MAX"));
  EXPECT_THAT(torchrun_refusal({"--node-rank", "2", "--nnodes", "2"}),
              HasSubstr("--node-rank is 2, but --nnodes is 2"));
}

TEST(TorchrunFlags, NodeZeroHasTheCoordinator) {
  const Words two{"--nnodes", "2", "--master-addr", "node-a", "--master-port", "4000"};
  EXPECT_EQ(torchrun(two).coordinator, Host::kThis);
  const launcher::Options second = torchrun(two + Words{"--node_rank", "1"});
  EXPECT_EQ(second.coordinator, Host::kOther);
  EXPECT_EQ(second.node_rank, 1);
  EXPECT_EQ(second.meeting.host, "node-a");
  EXPECT_EQ(second.meeting.port, 4000);
  EXPECT_THAT(torchrun_refusal({"--master-port", "70000"}), HasSubstr("--master-port is 70000; use 1 to 65535"));
}

TEST(TorchrunFlags, AnEndpointHasTheCoordinatorOnItsHost) {
  const launcher::Options here =
      torchrun({"--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost", "--rdzv-id", "job7"});
  EXPECT_EQ(here.coordinator, Host::kFirst);
  EXPECT_EQ(here.meeting.port, 29400);
  EXPECT_EQ(here.node_rank, -1);
  EXPECT_EQ(here.run_id, "job7");
  const launcher::Options there = torchrun({"--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint",
                                            "127.0.0.1:4001", "--rdzv-conf", "is_host=0,timeout=5"});
  EXPECT_EQ(there.coordinator, Host::kOther);
  EXPECT_EQ(there.times.join, Milliseconds(5'000));
  EXPECT_THAT(torchrun_refusal({"--nnodes", "2", "--rdzv-backend", "c10d"}), HasSubstr("needs --rdzv-endpoint"));
  EXPECT_THAT(torchrun_refusal({"--rdzv-backend", "etcd"}),
              HasSubstr("--rdzv-backend is etcd, which needs an etcd server; use c10d"));
  EXPECT_THAT(torchrun_refusal({"--rdzv-backend", "c11d"}), HasSubstr("did you mean c10d?"));
}

TEST(TorchrunFlags, StandaloneIsOneNodeAtAFreePort) {
  const launcher::Options one = torchrun({"--standalone", "--master-port", "4000", "--rdzv-id", "x"});
  EXPECT_EQ(one.meeting.port, 0);
  EXPECT_NE(one.run_id, "x");
  EXPECT_THAT(torchrun_refusal({"--standalone", "--nnodes", "2"}), HasSubstr("--standalone is for one node"));
}

TEST(TorchrunFlags, ShortFlagsHaveTheirValueBesideOrBehindThem) {
  const launcher::Options options = torchrun({"-r3", "-t", "0:1", "--local-ranks-filter", "0,2", "--log_dir", "logs"});
  EXPECT_TRUE(options.redirects.has_err(5));
  EXPECT_TRUE(options.tee.has_out(0));
  EXPECT_FALSE(options.tee.has_out(1));
  EXPECT_THAT(options.shown_workers, ElementsAre(0, 2));
  EXPECT_EQ(options.log_dir, "logs");
}

TEST(TorchrunFlags, TheEnvironmentStandsBehindTheCommandLine) {
  const Variable nodes("PET_NNODES", "3"), workers("PET_NPROC_PER_NODE", "2"), no_python("PET_NO_PYTHON", "1");
  EXPECT_EQ(torchrun({}).nodes, (NodeRange{3, 3}));
  EXPECT_EQ(torchrun({"--nnodes", "2"}).nodes, (NodeRange{2, 2}));
  EXPECT_EQ(torchrun({"--nnodes", "2"}).workers, 2);
  EXPECT_THAT(refusal({"torchrun", "train"}), HasSubstr("train does not exist here or in PATH"));  // --no-python
  const Variable wrong("PET_MAX_RESTARTS", "many");
  EXPECT_THAT(torchrun_refusal({}), HasSubstr("--max-restarts is many; use a whole number of at least 0 "
                                              "(PET_MAX_RESTARTS in the environment)"));
  EXPECT_EQ(torchrun({"--max-restarts", "1"}).max_restarts, 1);
}

TEST(TorchrunFlags, UnknownFlagsAreRefusedWithTheNearest) {
  EXPECT_THAT(torchrun_refusal({"--nproc-per-nod", "2"}), HasSubstr("did you mean --nproc-per-node?"));
  EXPECT_THAT(torchrun_refusal({"--nnodes", "--standalone"}), HasSubstr("--nnodes needs a value"));
  EXPECT_THAT(refusal({"torchrun", "--nnodes"}), HasSubstr("--nnodes needs a value"));
}

// --- msrun

TEST(MsrunFlags, WorkersAreDividedAmongNodes) {
  const launcher::Options options = msrun({"--worker_num", "8", "--local_worker_num=4", "--node_rank", "-1"});
  EXPECT_EQ(options.nodes, (NodeRange{2, 2}));
  EXPECT_EQ(options.workers, 4);
  EXPECT_EQ(options.node_rank, -1);
  EXPECT_EQ(options.coordinator, Host::kFirst);
  EXPECT_EQ(options.meeting.port, 8118);
  EXPECT_EQ(msrun({"--worker_num", "8", "--local_worker_num", "4", "--node_rank", "1"}).node_rank, 1);
  EXPECT_EQ(
      msrun_refusal({"--worker_num", "8", "--local_worker_num", "3"}),
      "--worker-num is 8, and --local-worker-num is 3, which does not divide it; each node needs as many workers");
  EXPECT_THAT(msrun_refusal({"--worker_num", "4"}), HasSubstr("--worker-num is 4, below --local-worker-num 8"));
}

TEST(MsrunFlags, OneNodeIgnoresItsNumber) {
  EXPECT_EQ(msrun({"--worker_num", "8", "--local_worker_num", "8", "--node_rank", "5"}).node_rank, -1);
  EXPECT_EQ(msrun({}).nodes, (NodeRange{1, 1}));
  EXPECT_EQ(msrun({}).workers, 8);
}

TEST(MsrunFlags, CoresAreGivenByDevice) {
  EXPECT_THAT(msrun_refusal({"--bind_core", R"({"dev0": ["0-1"]})"}), HasSubstr("whose key dev0 is not a device"));
  EXPECT_THAT(msrun_refusal({"--bind_core", R"({"device0": ["0..3"]})"}), HasSubstr("is not a range"));
  EXPECT_EQ(msrun({"--bind_core", R"({"device0": ["0-1"]})"}).bind_core, R"({"device0": ["0-1"]})");
}

TEST(MsrunFlags, WithoutJoinTheLauncherReturns) {
  EXPECT_TRUE(launched({"msrun"}).background);
  EXPECT_TRUE(launched({"msrun", "--join", "False"}).background);
  const LauncherArguments joined = launched({"msrun", "--join", "True", "--tail_worker_log", "0,3"});
  EXPECT_FALSE(joined.background);
  EXPECT_THAT(joined.options.shown_workers, ElementsAre(0, 3));
  EXPECT_TRUE(joined.options.tee.has_out(0));
  EXPECT_THAT(msrun_refusal({"--join", "yes"}), HasSubstr("--join is yes; use True or False"));
}

TEST(MsrunFlags, WhatIsNotHereIsRefusedByName) {
  EXPECT_THAT(msrun_refusal({"--sim_level", "1"}), HasSubstr("--sim-level is 1, a dry run of MindSpore; use -1"));
  EXPECT_EQ(msrun({"--sim_level", "-1", "--rank_table_file", "", "--sim_rank_id", "0"}).workers, 8);
  EXPECT_THAT(msrun_refusal({"--rank_table_file", "r.json"}), HasSubstr("--rank-table-file is r.json"));
  EXPECT_THAT(msrun_refusal({"--master_port", "80"}), HasSubstr("--master-port is 80; use 1024 to 65535"));
  EXPECT_THAT(msrun_refusal({"--master_addr", "::1"}), HasSubstr("use an IPv4 address or a host name"));
  EXPECT_THAT(msrun_refusal({"--worker_log_name", "a/b"}), HasSubstr("--worker-log-name is a/b, a path"));
  EXPECT_EQ(msrun({"--cluster_time_out", "30"}).times.join, Milliseconds(30'000));
}

TEST(LauncherHelp, FitsAScreen) {
  for (const char* tool : {"torchrun", "msrun"}) {
    const auto help = std::get<EarlyExit>(parsed({tool, "--help"}));
    EXPECT_EQ(help.code, 0);
    std::istringstream text(help.text);
    int lines = 0;
    for (std::string line; std::getline(text, line); ++lines) EXPECT_LE(line.size(), 100U) << line;
    EXPECT_LE(lines, 56) << help.text;
  }
}

}  // namespace
}  // namespace loom::cli
