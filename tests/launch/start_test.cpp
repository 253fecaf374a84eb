// Promise: a launcher's variables say which rank a process is, in one order of precedence, and by what messages go;
//          what is missing or no number is named.
#include "engine/launch/start.h"

#include <cstdlib>
#include <gmock/gmock.h>
#include <map>

#include "engine/core/error.h"
#include "engine/launch/run_ranks.h"

namespace loom::launch {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Variables = std::map<std::string, std::string>;

class StartOf : public ::testing::Test {
 protected:
  Start start(const Variables& variables) {
    for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
    try {
      const Start start = Start::detect();
      clear(variables);
      return start;
    } catch (...) {
      clear(variables);
      throw;
    }
  }
  std::string refusal(const Variables& variables) {
    try {
      start(variables);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "not refused";
  }

 private:
  static void clear(const Variables& variables) {
    for (const auto& [name, value] : variables) ::unsetenv(name.c_str());
  }
};

const Variables kTorchrun{{"RANK", "5"},
                          {"WORLD_SIZE", "8"},
                          {"LOCAL_RANK", "1"},
                          {"LOCAL_WORLD_SIZE", "4"},
                          {"MASTER_ADDR", "h0"},
                          {"MASTER_PORT", "6000"},
                          {"TORCHELASTIC_RUN_ID", "run7"},
                          {"TORCHELASTIC_RESTART_COUNT", "2"}};
const Variables kOpenMpi{{"OMPI_COMM_WORLD_RANK", "1"},
                         {"OMPI_COMM_WORLD_SIZE", "2"},
                         {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                         {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}};
const Variables kHydra{{"PMI_RANK", "2"}, {"PMI_SIZE", "3"}, {"MPI_LOCALRANKID", "2"}, {"MPI_LOCALNRANKS", "3"}};
const Variables kSlurm{{"SLURM_STEP_ID", "0"},
                       {"SLURM_JOB_ID", "20077"},
                       {"SLURM_PROCID", "9"},
                       {"SLURM_NTASKS", "11"},
                       {"SLURM_LOCALID", "1"},
                       {"SLURM_NODEID", "2"},
                       {"SLURM_TASKS_PER_NODE", "4(x2),3"},
                       {"SLURM_JOB_NODELIST", "n[01-02,5],m3"}};

Variables together(Variables all, const Variables& more) {
  all.insert(more.begin(), more.end());
  return all;
}

TEST_F(StartOf, TorchrunGoesBeforeAllOthers) {
  for (const Variables& variables : {kTorchrun, together(together(together(kTorchrun, kOpenMpi), kHydra), kSlurm)}) {
    const Start found = start(variables);
    EXPECT_EQ(found.launcher, "torchrun");
    EXPECT_EQ(found.rank(), 5);
    EXPECT_EQ(found.processes, 8);
    EXPECT_EQ(found.local_process, 1);
    EXPECT_EQ(found.local_ranks(8), 4);
    EXPECT_EQ(found.carrier, Carrier::kTcp);
    EXPECT_EQ(to_text(found.tcp.store), "h0:6000");
    EXPECT_EQ(found.tcp.id, "6000.2.run7");
    EXPECT_FALSE(found.tcp.hosts_store);
  }
}

TEST_F(StartOf, RankZeroHasTheStoreUnlessTheAgentHasIt) {
  Variables first = kTorchrun;
  first["RANK"] = "0";
  EXPECT_TRUE(start(first).tcp.hosts_store);
  first["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  EXPECT_FALSE(start(first).tcp.hosts_store);
}

TEST_F(StartOf, OneHostOfTorchrunHasThreads) {
  Variables one = kTorchrun;
  one["LOCAL_WORLD_SIZE"] = "8";
  const Start found = start(one);
  EXPECT_TRUE(found.first_runs_all());
  EXPECT_FALSE(found.ranks_are_processes());
  EXPECT_EQ(found.rank(), std::nullopt);
  EXPECT_EQ(found.meeting, "6000.2.run7");
}

TEST_F(StartOf, OpenMpiGoesBeforeHydraAndSlurm) {
  const Start found = start(together(together(kOpenMpi, kHydra), kSlurm));
  EXPECT_EQ(found.launcher, "Open MPI");
  EXPECT_EQ(found.rank(), 1);
  EXPECT_EQ(found.carrier, has_mpi() ? Carrier::kMpi : Carrier::kTcp);
}

TEST_F(StartOf, HydraGoesBeforeSlurm) {
  const Start found = start(together(kHydra, kSlurm));
  EXPECT_EQ(found.launcher, "hydra");
  EXPECT_EQ(found.rank(), 2);
}

TEST_F(StartOf, SlurmMeetsAtItsFirstHost) {
  const Start found = start(kSlurm);
  EXPECT_EQ(found.launcher, "Slurm");
  EXPECT_EQ(found.rank(), 9);
  EXPECT_EQ(found.local_process, 1);
  EXPECT_EQ(found.local_ranks(11), 3);
  EXPECT_EQ(found.carrier, Carrier::kTcp);
  EXPECT_EQ(to_text(found.tcp.store), "n01:15077");
  EXPECT_EQ(found.tcp.id, "20077.0");
}

TEST_F(StartOf, AnAllocationOfSlurmIsNoStep) {
  Variables allocation = kSlurm;
  allocation.erase("SLURM_STEP_ID");
  EXPECT_EQ(start(allocation).processes, 0);
  Variables single = kSlurm;
  single["SLURM_NTASKS"] = "1";
  EXPECT_EQ(start(single).processes, 0);
}

TEST_F(StartOf, MsrunMeetsAtItsScheduler) {
  const Variables worker{{"MS_ROLE", "MS_WORKER"}, {"RANK_ID", "3"},        {"RANK_SIZE", "4"},
                         {"DEVICE_ID", "1"},       {"MS_SCHED_HOST", "h0"}, {"MS_SCHED_PORT", "8118"}};
  const Start found = start(worker);
  EXPECT_EQ(found.launcher, "msrun");
  EXPECT_EQ(found.rank(), 3);
  EXPECT_EQ(found.carrier, Carrier::kTcp);
  EXPECT_FALSE(found.tcp.hosts_store);
  Variables local = worker;
  local["MS_SCHED_HOST"] = "127.0.0.1";
  EXPECT_TRUE(start(local).first_runs_all());
  const Start scheduler =
      start({{"MS_ROLE", "MS_SCHED"}, {"MS_SCHED_HOST", "h0"}, {"MS_SCHED_PORT", "8118"}, {"MS_WORKER_NUM", "4"}});
  EXPECT_TRUE(scheduler.is_scheduler);
  EXPECT_EQ(scheduler.tcp.size, 4);
}

TEST_F(StartOf, NobodyHasThreads) {
  EXPECT_EQ(start({}).processes, 0);
  EXPECT_EQ(start({{"RANK", "3"}, {"WORLD_SIZE", "4"}}).processes, 0);  // a pod's number, not a process's
  EXPECT_EQ(start({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"LOCAL_RANK", "0"}}).processes, 0);
}

TEST_F(StartOf, WrongVariablesAreNamed) {
  Variables wrong = kTorchrun;
  wrong["WORLD_SIZE"] = "many";
  EXPECT_EQ(refusal(wrong), "the environment variable WORLD_SIZE is 'many', expected a number of ranks");
  wrong = kTorchrun;
  wrong["RANK"] = "8";
  EXPECT_EQ(refusal(wrong), "the environment variable RANK is 8, but WORLD_SIZE is 8; ranks are 0 to 7");
  wrong = kTorchrun;
  wrong.erase("MASTER_PORT");
  EXPECT_EQ(refusal(wrong),
            "torchrun started 8 processes, but they know no meeting point: MASTER_ADDR and MASTER_PORT are not set; "
            "export the host of rank 0 and a free port of it");
  wrong = kTorchrun;
  wrong["MASTER_PORT"] = "x";
  EXPECT_THAT(refusal(wrong), HasSubstr("MASTER_ADDR and MASTER_PORT is 'h0:x', expected HOST:PORT"));
}

TEST_F(StartOf, WorkersOfMsrunWithoutRanksWouldTrainAlone) {
  EXPECT_EQ(refusal({{"MS_ROLE", "MS_WORKER"}, {"MS_WORKER_NUM", "4"}, {"DEVICE_ID", "1"}}),
            "msrun started 4 workers without RANK_ID; give it --node_rank on each host");
}

TEST_F(StartOf, IsDescribed) {
  EXPECT_THAT(
      start(kTorchrun).describe(),
      AllOf(HasSubstr("launch: torchrun, process 5 of 8, 1 of 4 on this host, messages by TCP, meeting at h0:6000; "
                      "read in the order of torchrun (RANK), msrun"),
            HasSubstr("Slurm (SLURM_PROCID)")));
  EXPECT_THAT(start({}).describe(), HasSubstr("launch: no launcher, ranks are threads"));
}

TEST(SlurmLists, NameTheirFirstHost) {
  EXPECT_EQ(first_host("n[01-02,5],m3"), "n01");
  EXPECT_EQ(first_host("alone"), "alone");
  EXPECT_EQ(first_host("a,b"), "a");
  EXPECT_EQ(first_host("rack[3]node,x"), "rack3node");
  EXPECT_EQ(first_host("n[7"), "n7");
  EXPECT_EQ(first_host(""), "");
}

TEST(SlurmLists, CountTheirTasks) {
  EXPECT_THAT(tasks_per_node("4(x2),3"), ElementsAre(4, 4, 3));
  EXPECT_THAT(tasks_per_node("2"), ElementsAre(2));
  for (const char* text : {"", "x", "4(x", "4(x0)", "-1", "4(x9999999)"}) EXPECT_THAT(tasks_per_node(text), IsEmpty());
}

}  // namespace
}  // namespace loom::launch
