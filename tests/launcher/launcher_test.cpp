// Promise: agents start the workers of a job with the launcher's variables, watch them together, restart them together,
//          and say which worker or which host ended the job. Nothing that connects to their port disturbs them.
// World:   agents as processes of this machine, at 127.0.0.1; workers are shell scripts.
#include <gmock/gmock.h>
#include <sys/socket.h>

#include "engine/comm/tcp/store.h"
#include "tests/launcher/agents.h"

namespace loom::launcher {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// --- What workers see

constexpr const char* kAllVariables =
    "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK $GROUP_WORLD_SIZE $ROLE_RANK $ROLE_WORLD_SIZE "
    "$ROLE_NAME $MASTER_ADDR $TORCHELASTIC_RESTART_COUNT $TORCHELASTIC_MAX_RESTARTS $TORCHELASTIC_RUN_ID "
    "$TORCHELASTIC_USE_AGENT_STORE $OMP_NUM_THREADS > seen$RANK; echo $MASTER_PORT > port$RANK; test -n "
    "\"$TORCHELASTIC_ERROR_FILE\"";

TEST(Launcher, GivesEachWorkerOfTwoNodesItsVariables) {
  ::unsetenv("OMP_NUM_THREADS");
  Job job(kAllVariables);
  job.options.nodes = {2, 2};
  job.options.workers = 2;
  AgentProcess second = job.start(1);
  AgentProcess first = job.start(0);
  const AgentEnd end = first.end();
  EXPECT_EQ(end.status, 0) << end.err;
  EXPECT_EQ(second.end().status, 0);
  EXPECT_EQ(job.read("seen0"), "0 0 4 2 0 2 0 4 default 127.0.0.1 0 0 none True 1\n");
  EXPECT_EQ(job.read("seen1"), "1 1 4 2 0 2 1 4 default 127.0.0.1 0 0 none True 1\n");
  EXPECT_EQ(job.read("seen2"), "2 0 4 2 1 2 2 4 default 127.0.0.1 0 0 none True 1\n");
  EXPECT_EQ(job.read("seen3"), "3 1 4 2 1 2 3 4 default 127.0.0.1 0 0 none True 1\n");
  EXPECT_EQ(job.read("port3"), fmt::format("{}\n", job.options.meeting.port));
  EXPECT_THAT(end.err, HasSubstr("OMP_NUM_THREADS is 1 in each of the 2 workers"));
}

TEST(Launcher, NodesOfDifferentSizeHaveContiguousRanks) {
  Job job("echo $WORLD_SIZE > seen$RANK.$GROUP_RANK.$LOCAL_RANK");
  job.options.nodes = {2, 2};
  Options large = job.of_node(1);
  large.workers = 3;
  AgentProcess second = job.start_with(large, "agent1");
  AgentProcess first = job.start(0);
  EXPECT_EQ(first.end().status, 0);
  EXPECT_EQ(second.end().status, 0);
  EXPECT_EQ(job.read("seen0.0.0"), "4\n");
  EXPECT_EQ(job.read("seen3.1.2"), "4\n");
}

TEST(Launcher, OpenMpThreadsThatAreSetStay) {
  ::setenv("OMP_NUM_THREADS", "3", 1);
  Job job("echo $OMP_NUM_THREADS > omp$RANK");
  job.options.workers = 2;
  EXPECT_EQ(job.start(0).end().status, 0);
  ::unsetenv("OMP_NUM_THREADS");
  EXPECT_EQ(job.read("omp1"), "3\n");
}

TEST(Launcher, AnyFreePortIsTheWorkersPort) {
  Job job("echo $MASTER_PORT > port");
  job.options.meeting.port = 0;
  EXPECT_EQ(job.start(0).end().status, 0);
  EXPECT_GT(std::stoi(job.read("port")), 0);
}

TEST(Launcher, ThePortIsTheStoreOfTheWorkers) {
  Job job("touch up; until test -e go; do sleep 0.05; done");
  AgentProcess agent = job.start(0);
  ASSERT_TRUE(wait_until([&] { return job.has("up"); }));
  const comm::tcp::Address address{"127.0.0.1", job.options.meeting.port};
  comm::tcp::StoreClient client(address, std::chrono::steady_clock::now() + std::chrono::seconds(30));
  client.set("key", "value");
  EXPECT_EQ(client.get("key"), "value");
  test::write_file(job.folder() / "go", "");
  EXPECT_EQ(agent.end().status, 0);
}

// --- Failures and restarts

TEST(Launcher, AFailureIsReportedWithItsRankAndExitCode) {
  Job job("if [ $RANK = 1 ]; then echo no room >&2; exit 3; fi; sleep 600");
  job.options.workers = 2;
  const AgentEnd end = job.start(0).end();
  EXPECT_EQ(end.status, 1);
  EXPECT_THAT(end.err,
              AllOf(HasSubstr("rank 1 (local rank 1 on "), HasSubstr("ended with exit code 3 at "),
                    HasSubstr("The last lines of stderr of rank 1:\n    no room\n"), Not(HasSubstr("rank 0 (local"))));
}

TEST(Launcher, AfterAKillAllWorkersStartAgainOnAllNodes) {
  Job job(
      "echo $RANK >> started$TORCHELASTIC_RESTART_COUNT.$RANK; if [ $TORCHELASTIC_RESTART_COUNT = 1 ]; then exit 0; fi; "
      "if [ $RANK = 3 ]; then until test -e started0.0 -a -e started0.1 -a -e started0.2; do sleep 0.05; done; kill -9 "
      "$$; fi; sleep 600");
  job.options.nodes = {2, 2};
  job.options.workers = 2;
  job.options.max_restarts = 1;
  AgentProcess first = job.start(0);
  AgentProcess second = job.start(1);
  const AgentEnd end = first.end();
  EXPECT_EQ(end.status, 0) << end.err;
  EXPECT_EQ(second.end().status, 0);
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(job.read(fmt::format("started1.{}", rank)), fmt::format("{}\n", rank));
  EXPECT_THAT(end.err, AllOf(HasSubstr("ended with signal SIGKILL"), HasSubstr("restart 1 of 1")));
}

TEST(Launcher, ExhaustedRestartsEndAllAgentsWithTheReport) {
  Job job("if [ $RANK = 1 ]; then kill -SEGV $$; fi; sleep 600");
  job.options.nodes = {2, 2};
  job.options.max_restarts = 1;
  AgentProcess first = job.start(0);
  AgentProcess second = job.start(1);
  for (AgentProcess* agent : {&first, &second}) {
    const AgentEnd end = agent->end();
    EXPECT_EQ(end.status, 1);
    EXPECT_THAT(end.err, AllOf(HasSubstr("rank 1 (local rank 0 on "), HasSubstr("ended with signal SIGSEGV"),
                               HasSubstr("1 of 1 restarts were used")));
  }
}

TEST(Launcher, AWorkerThatEndsEarlyWithZeroIsNoFailure) {
  Job job(
      "if [ $RANK = 0 ]; then touch over; exit 0; fi; until test -e over; do sleep 0.05; done; sleep 0.3; touch rest");
  job.options.workers = 2;
  EXPECT_EQ(job.start(0).end().status, 0);
  EXPECT_TRUE(job.has("rest"));
}

TEST(Launcher, AWorkerThatIgnoresSigtermIsKilled) {
  Job job(
      "if [ $RANK = 1 ]; then until test -e deaf; do sleep 0.05; done; exit 1; fi; trap '' TERM; touch deaf; "
      "while true; do sleep 0.1; done");
  job.options.workers = 2;
  job.options.times.stop = Milliseconds(300);
  EXPECT_EQ(job.start(0).end().status, 1);
}

TEST(Launcher, AStartThatIsRepeatedHasAnEmptyStoreAndTheSameWords) {
  Job job("echo \"$0 $1\" >> words; test $TORCHELASTIC_RESTART_COUNT = 2");
  job.options.program.insert(job.options.program.end(), {"zero", "a b"});
  job.options.max_restarts = 2;
  EXPECT_EQ(job.start(0).end().status, 0);
  EXPECT_EQ(job.read("words"), "zero a b\nzero a b\nzero a b\n");
}

// --- Nodes that come and go

TEST(Launcher, ALostAgentLeavesFewerNodesWhereTheJobAllowsIt) {
  Job job("touch up$RANK.$TORCHELASTIC_RESTART_COUNT; if [ $WORLD_SIZE = 1 ]; then exit 0; fi; sleep 600");
  job.options.nodes = {1, 2};
  job.options.max_restarts = 1;
  job.options.times.last_call = Milliseconds(3'000);
  AgentProcess first = job.start(0);
  AgentProcess second = job.start(1);
  ASSERT_TRUE(wait_until([&] { return job.has("up0.0") && job.has("up1.0"); }));
  second.send(SIGKILL);
  const AgentEnd end = first.end();
  EXPECT_EQ(end.status, 0) << end.err;
  EXPECT_THAT(end.err, HasSubstr("node_rank 1 ("));
  EXPECT_THAT(end.err, HasSubstr("is lost: it closed the connection"));
  EXPECT_TRUE(job.has("up0.1"));
}

TEST(Launcher, ALostAgentWithoutRestartsEndsTheJobAndNamesTheHost) {
  Job job("touch up$RANK; sleep 600");
  job.options.nodes = {2, 2};
  AgentProcess first = job.start(0);
  Options named = job.of_node(1);
  named.host = "node-b";
  AgentProcess second = job.start_with(named, "agent1");
  ASSERT_TRUE(wait_until([&] { return job.has("up0") && job.has("up1"); }));
  second.send(SIGKILL);
  const AgentEnd end = first.end();
  EXPECT_EQ(end.status, 1);
  EXPECT_THAT(end.err, HasSubstr("node_rank 1 (node-b) is lost: it closed the connection; look at that host"));
}

TEST(Launcher, AnAgentWithoutItsCoordinatorStopsItsWorkersAndFails) {
  Job job("touch up$RANK; trap 'touch stopped$RANK; exit 1' TERM; while true; do sleep 0.1; done");
  job.options.nodes = {2, 2};
  AgentProcess first = job.start(0);
  AgentProcess second = job.start(1);
  ASSERT_TRUE(wait_until([&] { return job.has("up0") && job.has("up1"); }));
  first.send(SIGKILL);
  const AgentEnd end = second.end();
  EXPECT_EQ(end.status, 1);
  EXPECT_THAT(end.err, HasSubstr(fmt::format("the coordinator at 127.0.0.1:{} is lost", job.options.meeting.port)));
  EXPECT_TRUE(job.has("stopped1"));
  EXPECT_FALSE(job.has("stopped0"));  // killed with its agent
}

TEST(Launcher, ALateAgentStartsAllAgainWithoutTakingARestart) {
  Job job(
      "touch up$RANK.$WORLD_SIZE; if [ $WORLD_SIZE = 2 ]; then echo $TORCHELASTIC_RESTART_COUNT > count; exit 0; fi; "
      "sleep 600");
  job.options.nodes = {1, 2};
  AgentProcess first = job.start(0);
  ASSERT_TRUE(wait_until([&] { return job.has("up0.1"); }));
  AgentProcess second = job.start(1);
  EXPECT_EQ(first.end().status, 0);
  EXPECT_EQ(second.end().status, 0);
  EXPECT_EQ(job.read("count"), "0\n");
}

TEST(Launcher, AMissingNodeIsNamedAtTheDeadline) {
  Job job("true");
  job.options.nodes = {3, 3};
  job.options.times.join = Milliseconds(3'000);
  AgentProcess first = job.start(0);
  AgentProcess second = job.start(1);
  for (AgentProcess* agent : {&first, &second}) {
    const AgentEnd end = agent->end();
    EXPECT_EQ(end.status, 1);
    EXPECT_THAT(end.err, HasSubstr("2 of 3 nodes joined within 3 s; node_rank 2 is missing"));
  }
}

TEST(Launcher, AnAgentWithoutACoordinatorSaysWhereItLooked) {
  Job job("true");
  job.options.nodes = {2, 2};
  job.options.times.join = Milliseconds(1'500);
  const AgentEnd end = job.start(1).end();
  EXPECT_EQ(end.status, 1);
  EXPECT_THAT(end.err, HasSubstr(fmt::format("no coordinator at 127.0.0.1:{} within 1.5 s", job.options.meeting.port)));
}

// An agent that does not fit is refused, and the job goes on.
void expect_refused(const std::function<void(Options&)>& change, const std::string& text) {
  Job job("true");
  job.options.nodes = {2, 2};
  AgentProcess first = job.start(0);
  ASSERT_TRUE(wait_until([&] { return first.err().find("joined: 1 of 2 nodes") != std::string::npos; }));
  Options changed = job.of_node(1);
  change(changed);
  const AgentEnd refused = job.start_with(changed, "refused").end();
  EXPECT_EQ(refused.status, 2);
  EXPECT_THAT(refused.err, HasSubstr(text));
  AgentProcess second = job.start(1);
  EXPECT_EQ(first.end().status, 0);
  EXPECT_EQ(second.end().status, 0);
}

TEST(Launcher, ANodeThatIsStartedTwiceIsRefused) {
  expect_refused([](Options& o) { o.node_rank = 0; }, "node_rank 0 has joined already, from ");
}
TEST(Launcher, AnotherVersionIsRefused) {
  expect_refused([](Options& o) { o.version = "0.9"; }, "it is Shardloom 0.9, this job is of Shardloom 1.0");
}
TEST(Launcher, AnotherJobIsRefused) {
  expect_refused([](Options& o) { o.run_id = "b"; }, "its job is 'b', the job here is 'none'");
}
TEST(Launcher, AnotherNumberOfNodesIsRefused) {
  expect_refused([](Options& o) { o.nodes = {2, 3}; }, "it expects 2:3 nodes, this job has 2");
}
TEST(Launcher, ANodeRankOutsideOfTheJobIsRefused) {
  expect_refused([](Options& o) { o.node_rank = 2; },
                 "its node_rank is 2, this job has 2 nodes; use a node_rank from 0");
}

TEST(Launcher, NodesWithoutNumbersMeetAtOneAddress) {
  Job job("echo $GROUP_RANK > node$RANK");
  job.options.nodes = {2, 2};
  job.options.node_rank = -1;
  job.options.coordinator = Host::kFirst;
  AgentProcess first = job.start_with(job.options, "a");
  AgentProcess second = job.start_with(job.options, "b");
  EXPECT_EQ(first.end().status, 0);
  EXPECT_EQ(second.end().status, 0);
  EXPECT_EQ(job.read("node0"), "0\n");
  EXPECT_EQ(job.read("node1"), "1\n");
}

// --- Strangers

comm::tcp::Socket connection(const Job& job) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  return comm::tcp::connect_to({"127.0.0.1", job.options.meeting.port}, deadline);
}

TEST(Launcher, StrangersDoNotDisturbTheRendezvous) {
  Job job("true");
  job.options.nodes = {2, 2};
  AgentProcess first = job.start(0);
  std::vector<comm::tcp::Socket> strangers;
  for (int i = 0; i < 300; ++i) strangers.push_back(connection(job));  // says nothing
  for (const std::string& text : {std::string("GET / HTTP/1.1\r\n\r\n"), std::string("LO"), std::string("LOOM"),
                                  "LOOM" + std::string(500, '\xff'), std::string(64, '\0')}) {
    strangers.push_back(connection(job));
    ::send(strangers.back()->get(), text.data(), text.size(), MSG_NOSIGNAL);
  }
  for (int i = 0; i < 50; ++i) connection(job);  // closed at once
  AgentProcess second = job.start(1);
  const AgentEnd end = first.end();
  EXPECT_EQ(end.status, 0) << end.err;
  EXPECT_EQ(second.end().status, 0);
}

TEST(Launcher, APortInUseIsAnErrorWithTheNextStep) {
  Job job("true");
  const auto taken = comm::tcp::listen_on(job.options.meeting.port, "127.0.0.1");
  const AgentEnd end = job.start(0).end();
  EXPECT_EQ(end.status, 2);
  EXPECT_THAT(end.err, HasSubstr(fmt::format("--master-port {} is in use on this host; give another one, or "
                                             "--standalone, which takes a free one",
                                             job.options.meeting.port)));
}

// --- Signals

TEST(Launcher, ASignalStopsAllNodesInOrder) {
  Job job("touch up$RANK; trap 'touch saved$RANK; exit 0' TERM; while true; do sleep 0.1; done");
  job.options.nodes = {2, 2};
  job.options.max_restarts = 3;
  AgentProcess first = job.start(0);
  AgentProcess second = job.start(1);
  ASSERT_TRUE(wait_until([&] { return job.has("up0") && job.has("up1"); }));
  second.send(SIGTERM);
  EXPECT_EQ(second.end().status, 128 + SIGTERM);
  const AgentEnd end = first.end();
  EXPECT_EQ(end.status, 128 + SIGTERM);
  EXPECT_THAT(end.err, HasSubstr("was stopped by SIGTERM"));
  EXPECT_TRUE(job.has("saved0"));
  EXPECT_TRUE(job.has("saved1"));
}

TEST(Launcher, ASignalToTheCoordinatorsAgentStopsAllNodesToo) {
  Job job("touch up$RANK; trap 'sleep 0.5; touch saved$RANK; exit 0' INT; while true; do sleep 0.1; done");
  job.options.nodes = {2, 2};
  AgentProcess first = job.start(0);
  AgentProcess second = job.start(1);
  ASSERT_TRUE(wait_until([&] { return job.has("up0") && job.has("up1"); }));
  first.send(SIGINT);
  EXPECT_EQ(first.end().status, 128 + SIGINT);
  EXPECT_EQ(second.end().status, 128 + SIGINT);
  EXPECT_TRUE(job.has("saved0"));
  EXPECT_TRUE(job.has("saved1"));
}

TEST(Launcher, ASignalBeforeAllHaveJoinedEndsTheAgent) {
  Job job("true");
  job.options.nodes = {2, 2};
  AgentProcess first = job.start(0);
  connection(job);
  first.send(SIGTERM);
  EXPECT_EQ(first.end().status, 128 + SIGTERM);
}

TEST(Launcher, AProgramThatCannotBeStartedEndsAllNodes) {
  Job job("sleep 600");
  job.options.nodes = {2, 2};
  AgentProcess first = job.start(0);
  Options broken = job.of_node(1);
  broken.host = "node-b";
  broken.program = {"/no/such/program"};
  AgentProcess second = job.start_with(broken, "agent1");
  const AgentEnd end = first.end();
  EXPECT_EQ(end.status, 1);
  EXPECT_THAT(end.err,
              HasSubstr("node_rank 1 (node-b) cannot go on: /no/such/program cannot be started: No such file"));
  EXPECT_EQ(second.end().status, 1);
}

}  // namespace
}  // namespace loom::launcher
