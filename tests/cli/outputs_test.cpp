// Promise: a run loses nothing that was there before it: its outputs are checked before the first step, follow links,
//          never replace what is no file, and weights that are not finite replace nothing.
// World:   the built program; ranks as threads; a model of 12176 parameters.
#include <gmock/gmock.h>
#include <sys/stat.h>

#include "tests/support/program.h"

namespace loom::test {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

const Words kTwoRanks{"--nproc-per-node", "2"};
const Words kRun = kFourSteps + kTwoRanks;
const Words kLongRun = with_value(kRun, "--train-iters", "1000000");
const Words kPlan = Words{"plan", "--model-config", "model.yaml", "--world-size", "2", "--seq-length", "16"} + kSharded;

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename());
  std::ranges::sort(names);
  return names;
}

// --- Where outputs go

TEST(PlanOutputs, FollowLinksAndKeepWhatIsNoFile) {
  const ProgramFolder folder;
  folder.write("elsewhere/plan.json", "old");
  fs::create_symlink("elsewhere/plan.json", folder.path("link.json"));
  ASSERT_EQ(::mkfifo(folder.path("fifo").c_str(), 0600), 0);
  fs::create_symlink("/dev/null", folder.path("null"));
  ASSERT_EQ(folder.run(kPlan + Words{"--json", "link.json", "--trace", "null"}).exit_code, 0);
  EXPECT_TRUE(fs::is_symlink(folder.path("link.json")));
  EXPECT_TRUE(fs::is_symlink(folder.path("null")));
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  const std::string plan = folder.read("elsewhere/plan.json");
  EXPECT_EQ(nlohmann::json::parse(plan).at("parameters"), 12176);

  ASSERT_EQ(folder.run_shell(R"(cat fifo > got & "$0" "$@" && wait)", kPlan + Words{"--json", "fifo"}).exit_code, 0);
  EXPECT_EQ(folder.read("got"), plan);
  EXPECT_TRUE(fs::is_fifo(folder.path("fifo")));

  const Outcome piped = folder.run_shell(R"("$0" "$@" --json >(cat > piped) > text; for i in $(seq 100); do )"
                                         R"([ -s piped ] && break; sleep 0.1; done; sleep 0.2)",
                                         kPlan);
  EXPECT_THAT(piped.err, IsEmpty());
  EXPECT_EQ(folder.read("piped"), plan);
}

TEST(PlanOutputs, AreRefusedWhereOneWouldDestroyAnother) {
  const ProgramFolder folder;
  const Outcome twice = folder.run(kPlan + Words{"--json", "x", "--trace", "./x"});
  EXPECT_EQ(twice.exit_code, 2);
  EXPECT_EQ(twice.err, "shardloom: --trace: ./x is also written by --json; give each output a path of its own\n");
  EXPECT_FALSE(fs::exists(folder.path("x")));
  const std::string model = folder.read("model.yaml");
  const Outcome input = folder.run(kPlan + Words{"--report", "model.yaml"});
  EXPECT_EQ(input.exit_code, 2);
  EXPECT_EQ(input.err,
            "shardloom: --report: model.yaml is also read by --model-config and would be lost; give another path\n");
  EXPECT_EQ(folder.read("model.yaml"), model);
}

// --- Before the first step

class Refused : public ::testing::Test {
 protected:
  void expect(const Words& more, const std::string& message) const {
    const Outcome outcome = folder.run(kRun + more);
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_EQ(outcome.err, "shardloom: " + message + "\n");
    EXPECT_THAT(outcome.out, IsEmpty()) << "no step was made";
  }
  const ProgramFolder folder;
};

TEST_F(Refused, OutputsThatCannotBeWritten) {
  expect({"--save", "model.yaml/out"},
         "--save: cannot make the folder model.yaml/out: Not a directory; give a folder that can be written");
  expect({"--metrics-path", "data"}, "--metrics-path: data: is a folder; give the path of a file");
}

TEST_F(Refused, OutputsThatAreInputs) {
  const std::string data = folder.read("data/3.txt");
  expect({"--metrics-path", "data/3.txt"},
         "--metrics-path: data/3.txt is also read by --data-path and would be lost; give another path");
  expect({"--save", "data"},
         "--save: data is also what --data-path reads; give another folder, so that nothing there is written over");
  EXPECT_EQ(folder.read("data/3.txt"), data);
}

TEST_F(Refused, MetricsThatAReportCannotReadBack) {
  expect({"--metrics-path", "/dev/null", "--report", "r.html"},
         "--metrics-path: /dev/null is not a regular file, but --report reads the metrics back; give a file, or remove "
         "--report");
}

TEST_F(Refused, ASaveIntoTheFolderThatTrainingStartsFrom) {
  ASSERT_EQ(folder.run(kRun + Words{"--save", "out"}).exit_code, 0);
  const std::string weights = folder.read("out/model.safetensors");
  const Outcome outcome = folder.run(kTrain + Words{"--init-from-hf-path", "out", "--save", "./out"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_EQ(outcome.err,
            "shardloom: --save: ./out is also what --init-from-hf-path reads; give another folder, so that nothing "
            "there is written over\n");
  EXPECT_EQ(folder.read("out/model.safetensors"), weights);
}

// --- What was there before

TEST(Save, OverAModelInShardsLeavesOneModel) {
  const ProgramFolder folder;
  folder.write("out/model-00001-of-00002.safetensors", "old");
  folder.write("out/model-00002-of-00002.safetensors", "old");
  folder.write("out/model.safetensors.index.json", R"({"weight_map": {"a": "model-00001-of-00002.safetensors"}})");
  folder.write("out/notes.txt", "mine");
  ASSERT_EQ(folder.run(kRun + Words{"--save", "out"}).exit_code, 0);
  EXPECT_THAT(names_in(folder.path("out")),
              ElementsAre("config.json", "effective_config.yaml", "metrics.jsonl", "model.safetensors", "notes.txt"));
}

TEST(Metrics, OfAnEarlierRunAreKept) {
  const ProgramFolder folder;
  ASSERT_EQ(folder.run(kRun).exit_code, 0);
  const std::string first = folder.read("metrics.jsonl");
  const Outcome again = folder.run(kRun);
  EXPECT_EQ(again.exit_code, 0);
  EXPECT_EQ(again.err, "info: metrics.jsonl: the metrics of an earlier run are kept in metrics.1.jsonl\n");
  EXPECT_EQ(folder.read("metrics.1.jsonl"), first);
  EXPECT_EQ(folder.metrics("metrics.jsonl").size(), 4u);
}

TEST(Save, IsLockedWhileARunWritesThere) {
  const ProgramFolder folder;
  StartedProgram first = folder.start(kLongRun + Words{"--save", "out"});
  ASSERT_TRUE(first.wait_for_steps("out/metrics.jsonl", 1));
  const Outcome second = folder.run(kRun + Words{"--save", "out"});
  EXPECT_EQ(second.exit_code, 2);
  EXPECT_THAT(second.err,
              StartsWith(fmt::format("shardloom: --save: another run writes out (process {} on ", first.pid())));
  EXPECT_THAT(second.err, EndsWith("); wait for its end, or give another path\n"));
  first.send(SIGTERM);
  EXPECT_EQ(first.end().exit_code, 143);
  EXPECT_THAT(names_in(folder.path("out")),
              ElementsAre("config.json", "effective_config.yaml", "metrics.jsonl", "model.safetensors"));
}

// --- Values that are not finite

class Diverged : public ::testing::Test {
 protected:
  Diverged() {
    EXPECT_EQ(folder.run(kRun + Words{"--save", "out"}).exit_code, 0);
    weights = folder.read("out/model.safetensors");
  }
  // The same model with a learning rate that no model survives.
  Outcome run(const Words& more) const {
    return folder.run(with_value(kRun, "--lr", "1e30") + Words{"--save", "out", "--metrics-path", "diverged.jsonl"} +
                      more);
  }
  const ProgramFolder folder;
  std::string weights;
};

TEST_F(Diverged, EndsAtTheFirstNaNAndKeepsTheGoodModel) {
  const Outcome outcome = run({"--check-for-nan-in-loss-and-grad"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("found NaN in local forward loss calculation: iteration 2 of 4; nothing is saved, "
                                     "and out keeps what it held; look at the data, lower --lr or --clip-grad, or go "
                                     "on regardless with --no-check-for-nan-in-loss-and-grad\n"));
  EXPECT_EQ(folder.read("out/model.safetensors"), weights);
  EXPECT_EQ(folder.metrics("diverged.jsonl").size(), 1u);
}

TEST_F(Diverged, GoesOnWhereThatIsAskedForAndStillKeepsTheGoodModel) {
  const Outcome outcome = run({"--no-check-for-nan-in-loss-and-grad"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, StartsWith("warning: step 2: loss is "));
  EXPECT_EQ(std::ranges::count(outcome.err, '\n'), 2) << outcome.err;
  EXPECT_THAT(outcome.err,
              HasSubstr("shardloom: the run is done, but the model is not written, since 'model.embed_tokens.weight' "
                        "has values that are not finite; out keeps what it held; 3 of 4 steps had a loss or gradient "
                        "norm that is not finite, step 2 first\n"));
  EXPECT_THAT(outcome.out, Not(HasSubstr("model written")));
  EXPECT_EQ(folder.read("out/model.safetensors"), weights);
  EXPECT_EQ(folder.metrics("diverged.jsonl").size(), 4u);
  EXPECT_THAT(outcome.out, HasSubstr("loss nan"));  // without the sign that the processor gives it
  EXPECT_THAT(outcome.out + outcome.err, Not(HasSubstr("-nan")));
}

// --- Data that changes

class ChangedData : public ::testing::Test {
 protected:
  void expect(const std::function<void(const fs::path&)>& change, const std::string& message) const {
    StartedProgram run = folder.start(with_value(kLongRun, "--eval-iters", "0"));
    ASSERT_TRUE(run.wait_for_steps("metrics.jsonl", 1));
    for (int file = 1; file <= 6; ++file) change(folder.path(fmt::format("data/{}.txt", file)));
    const Outcome outcome = run.end();
    EXPECT_EQ(outcome.exit_code, 1);
    EXPECT_THAT(outcome.err, HasSubstr("] data/"));
    EXPECT_THAT(outcome.err, EndsWith(message + " since the run opened it; leave the file as it is while a run reads "
                                                "it, and start again\n"));
  }
  const ProgramFolder folder;
};

TEST_F(ChangedData, ThatIsTruncatedEndsTheRunWithItsName) {
  expect([](const fs::path& path) { fs::resize_file(path, 1); }, " bytes and has 1 now");
}

TEST_F(ChangedData, ThatIsWrittenOverEndsTheRunWithItsName) {
  expect(
      [](const fs::path& path) {
        std::fstream file(path, std::ios::in | std::ios::out);
        file << "other";
      },
      ".txt: was written to");
}

}  // namespace
}  // namespace loom::test
