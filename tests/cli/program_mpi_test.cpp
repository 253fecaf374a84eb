// Promise: processes as ranks train to the bits of threads as ranks, and refuse what is wrong without hanging.
// World:   the built program under mpirun with 2 processes.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <iterator>
#include <random>
#include <sstream>

#include "tests/support/checkpoints.h"
#include "tests/support/program.h"

namespace loom::test {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

const Words kMpirun{SHARDLOOM_MPIRUN, "-n", "2", "--oversubscribe", "--bind-to", "none"};

TEST(Mpi, HasTheBitsOfThreads) {
  const ProgramFolder folder;
  for (const char* grain : {"fast", "pytorch"}) {
    const Words run = kFourSteps + Words{"--kernel-grain", grain};
    const Outcome threads = folder.run(run + Words{"--save", "threads", "--nproc-per-node", "2"});
    ASSERT_EQ(threads.exit_code, 0) << threads.err;
    const Outcome processes = folder.run(run + Words{"--save", "processes"}, kMpirun);
    ASSERT_EQ(processes.exit_code, 0) << processes.err;
    const auto expected = folder.metrics("threads/metrics.jsonl");
    const auto actual = folder.metrics("processes/metrics.jsonl");
    ASSERT_EQ(actual.size(), 4u);
    for (std::size_t i = 0; i < actual.size(); ++i) {
      for (const char* key : {"step", "loss", "grad_norm", "lr"})
        EXPECT_EQ(actual[i].at(key), expected[i].at(key)) << grain << key << i;
    }
    EXPECT_EQ(actual.back().at("held_out_loss"), expected.back().at("held_out_loss"));
    EXPECT_EQ(folder.read("processes/model.safetensors"), folder.read("threads/model.safetensors"));
  }
}

TEST(Mpi, HasTheBitsOfThreadsWhereRanksShareMatrices) {
  const ProgramFolder folder;
  folder.write("model.yaml",
               "model_type: llama\nvocab_size: 256\nhidden_size: 16\nintermediate_size: 24\nnum_hidden_layers: 2\n"
               "num_attention_heads: 4\nnum_key_value_heads: 2\nmax_position_embeddings: 32\nrms_norm_eps: 1.0e-6\n"
               "attention_bias: true\nmlp_bias: true\ntie_word_embeddings: false\n");
  const std::string sharding = folder.read("fsdp2.yaml");
  const Words four{SHARDLOOM_MPIRUN, "-n", "4", "--oversubscribe", "--bind-to", "none"};
  int number = 0;
  for (const char* keys : {"tensor_parallel_size: 2\nsequence_parallel: true\n", "tensor_parallel_size: 4\n",
                           "tensor_parallel_size: 2\nring_attention_size: 2\n"}) {
    SCOPED_TRACE(keys);
    folder.write("fsdp2.yaml", sharding + keys);
    const std::string name = fmt::to_string(++number);
    const Outcome threads = folder.run(kFourSteps + Words{"--save", name + ".threads", "--nproc-per-node", "4"});
    ASSERT_EQ(threads.exit_code, 0) << threads.err;
    const Outcome processes = folder.run(kFourSteps + Words{"--save", name + ".processes"}, four);
    ASSERT_EQ(processes.exit_code, 0) << processes.err;
    EXPECT_EQ(folder.read(name + ".processes/model.safetensors"), folder.read(name + ".threads/model.safetensors"));
    const auto expected = folder.metrics(name + ".threads/metrics.jsonl");
    const auto actual = folder.metrics(name + ".processes/metrics.jsonl");
    ASSERT_EQ(actual.size(), 4U);
    for (std::size_t i = 0; i < actual.size(); ++i) {
      for (const char* key : {"loss", "grad_norm"}) EXPECT_EQ(actual[i].at(key), expected[i].at(key)) << key << i;
    }
    EXPECT_EQ(actual.back().at("held_out_loss"), expected.back().at("held_out_loss"));
  }
}

// Each process binds itself as the local rank that it is.
TEST(Mpi, BindsEachProcessToItsPartOfTheCoresAndChangesNoBit) {
  const ProgramFolder folder;
  const Outcome unbound = folder.run(kFourSteps + Words{"--save", "unbound"}, kMpirun);
  ASSERT_EQ(unbound.exit_code, 0) << unbound.err;
  const Words bound = kMpirun + Words{"-x", "CPU_AFFINITY_CONF=1"};
  const Outcome outcome = folder.run(kFourSteps + Words{"--save", "bound"}, bound);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("CPU_AFFINITY_CONF: rank 0 of this machine on cores "));
  EXPECT_THAT(outcome.out, Not(HasSubstr("rank 1 of this machine on cores ")));  // rank 0 knows its own alone
  EXPECT_EQ(folder.read("bound/model.safetensors"), folder.read("unbound/model.safetensors"));
  const Outcome refused = folder.run(kFourSteps, kMpirun + Words{"-x", "CPU_AFFINITY_CONF=1,npu1:4000-4001"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("CPU_AFFINITY_CONF binds npu1 to cores 4000-4001, but this process may not use "));
}

TEST(Mpi, TrainsTheAdapterOfThreads) {
  const ProgramFolder folder;
  const Words lora{"--lora-target-modules", "all-linear", "--lora-r", "2", "--freeze", "model.norm"};
  const Outcome threads = folder.run(kFourSteps + lora + Words{"--save", "threads", "--nproc-per-node", "2"});
  ASSERT_EQ(threads.exit_code, 0) << threads.err;
  const Outcome processes = folder.run(kFourSteps + lora + Words{"--save", "processes"}, kMpirun);
  ASSERT_EQ(processes.exit_code, 0) << processes.err;
  for (const char* file : {"adapter_model.safetensors", "adapter_config.json"}) {
    EXPECT_EQ(folder.read(std::string("processes/") + file), folder.read(std::string("threads/") + file)) << file;
  }
}

// The launcher shows a terminal to every process and hands on lines: a bar that redraws itself would be one long line.
TEST(Mpi, PrintsLinesAndNoBarThatRedrawsItself) {
  const ProgramFolder folder;
  const Outcome outcome = folder.run(kFourSteps, kMpirun);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("step 4/4  loss "));
  EXPECT_THAT(outcome.out, Not(HasSubstr("] 4/4")));
  for (std::size_t at = outcome.out.find('\r'); at != std::string::npos; at = outcome.out.find('\r', at + 1)) {
    ASSERT_EQ(outcome.out.substr(at, 2), "\r\n") << "a terminal's end of line is all that it may add";
  }
}

TEST(Mpi, PrintsMegatronsLineAndWritesScalarsOnTheLastRankAlone) {
  const ProgramFolder folder;
  const Outcome outcome = folder.run(
      kFourSteps + Words{"--log-format", "megatron", "--log-interval", "4", "--tensorboard-dir", "tb"}, kMpirun);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const std::string line = " iteration        4/       4 | consumed samples:           16 | elapsed time per iteration";
  ASSERT_THAT(outcome.out, HasSubstr(line));
  EXPECT_EQ(outcome.out.find(line, outcome.out.find(line) + 1), std::string::npos) << "a second time";
  const auto files = std::filesystem::directory_iterator(folder.path("tb"));
  EXPECT_EQ(std::distance(begin(files), end(files)), 1);
  EXPECT_EQ(folder.run({"compare", "metrics.jsonl", "tb"}).exit_code, 0);
}

TEST(Mpi, RefusesWhatIsWrongWithItsLineAndExitStatus2AndDoesNotHang) {
  const ProgramFolder folder;
  folder.write("fsdp2.yaml", "sharding_size: 3\n");
  const Outcome outcome = folder.run(kFourSteps, kMpirun);
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err,
              HasSubstr("shardloom: fsdp2.yaml:1:16: sharding_size is 3, but 2 ranks are running; use 1, 2 or "
                        "auto (all ranks)\n"));
}

// The processes that `pid` has started.
std::vector<int> children_of(int pid) {
  std::istringstream text(read_file(fmt::format("/proc/{0}/task/{0}/children", pid)));
  return {std::istream_iterator<int>(text), std::istream_iterator<int>()};
}

TEST(Mpi, ASignalToOneRankStopsAllAfterTheSameStepAndSavesTheModel) {
  const ProgramFolder folder;
  const Words run = with_value(kFourSteps, "--train-iters", "1000000") + Words{"--save", "out"};
  StartedProgram mpirun = folder.start(run, kMpirun);
  ASSERT_TRUE(mpirun.wait_for_steps("out/metrics.jsonl", 3));
  const auto ranks = children_of(mpirun.pid());
  ASSERT_EQ(ranks.size(), 2u);
  ASSERT_EQ(::kill(ranks.back(), SIGTERM), 0);
  const Outcome outcome = mpirun.end();
  EXPECT_EQ(outcome.exit_code, 143);
  EXPECT_THAT(outcome.err, HasSubstr(fmt::format("shardloom: stopped by SIGTERM after step {} of 1000000; the model of "
                                                 "that step is in out\n",
                                                 folder.metrics("out/metrics.jsonl").size())));
  EXPECT_EQ(folder.run({"generate", "out", "--prompt", "3", "--max-new-tokens", "2"}).exit_code, 0);
}

// mpirun hands SIGUSR1 on; a session that ends reaches the ranks themselves.
TEST(Mpi, AWarningOrTheEndOfTheSessionSavesTheModel) {
  for (const auto& [signal, name, status] : {std::tuple(SIGUSR1, "SIGUSR1", 138), {SIGHUP, "SIGHUP", 129}}) {
    const ProgramFolder folder;
    const Words run = with_value(kFourSteps, "--train-iters", "1000000") + Words{"--save", "out"};
    StartedProgram mpirun = folder.start(run, kMpirun);
    ASSERT_TRUE(mpirun.wait_for_steps("out/metrics.jsonl", 2));
    const auto ranks = children_of(mpirun.pid());
    ASSERT_EQ(ranks.size(), 2u);
    ASSERT_EQ(::kill(signal == SIGUSR1 ? mpirun.pid() : ranks.front(), signal), 0);
    const Outcome outcome = mpirun.end();
    EXPECT_EQ(outcome.exit_code, status);
    EXPECT_THAT(outcome.err,
                HasSubstr(fmt::format("shardloom: stopped by {} after step {} of 1000000; the model of that step is in "
                                      "out\n",
                                      name, folder.metrics("out/metrics.jsonl").size())));
    EXPECT_FALSE(std::filesystem::exists(folder.path("out/.shardloom.lock")));
    EXPECT_EQ(folder.run({"generate", "out", "--prompt", "3", "--max-new-tokens", "2"}).exit_code, 0);
  }
}

// One process is killed while the others train or save; the launcher ends them.
TEST(Mpi, ARunWhoseRanksAreKilledGoesOnAsIfTheyHadNotBeen) {
  const ProgramFolder folder;
  const std::int64_t steps = 200;
  const Words run = with_value(kFourSteps, "--train-iters", fmt::to_string(steps)) +
                    Words{"--save", "out", "--save-interval", "2", "--keep-last", "3"};
  ASSERT_EQ(folder.run(with_value(run, "--save", "whole"), kMpirun).exit_code, 0);
  std::mt19937 random(20261122);  // NOLINT: the same moments in every run
  int killed = 0;
  int started_runs = 0;
  for (int i = 0; killed < kills() && i < 10 * kills(); ++i) {
    ++started_runs;
    Words again = run + Words{"--load", "out"};
    if (i % 2 == 0) again.emplace_back("--async-save");
    StartedProgram mpirun = folder.start(again, kMpirun);
    std::this_thread::sleep_for(std::chrono::milliseconds(std::uniform_int_distribution(150, 900)(random)));
    const auto ranks = children_of(mpirun.pid());
    if (ranks.size() == 2) ::kill(ranks[static_cast<std::size_t>(i) % 2], SIGKILL);
    const Outcome outcome = mpirun.end();
    ASSERT_NE(outcome.exit_code, 124) << "it hung: " << outcome.err;
    killed += outcome.exit_code != 0 ? 1 : 0;
    if (outcome.exit_code == 0)
      std::filesystem::remove_all(folder.path("out"));  // it was done: once more from the start
  }
  fmt::print("{} of {} runs were killed before their end\n", killed, started_runs);
  EXPECT_EQ(killed, kills());
  const Outcome last = folder.run(run + Words{"--load", "out"}, kMpirun);
  ASSERT_EQ(last.exit_code, 0) << last.err;
  expect_same_checkpoint(folder.path("out"), folder.path("whole"), steps);
}

TEST(Mpi, AnOutputThatCannotBeWrittenIsSaidOnceWithExitStatus2) {
  const ProgramFolder folder;
  const Outcome outcome = folder.run(kFourSteps + Words{"--save", "model.yaml/out"}, kMpirun);
  EXPECT_EQ(outcome.exit_code, 2);
  const std::string message =
      "shardloom: --save: cannot make the folder model.yaml/out: Not a directory; give a folder that can be written\n";
  const std::size_t said = outcome.err.find(message);
  ASSERT_NE(said, std::string::npos) << outcome.err;
  EXPECT_EQ(outcome.err.find(message, said + 1), std::string::npos) << "rank 1 writes nothing there";
}

// --- Ranks that were started differently

class MpiJob : public ::testing::Test {
 protected:
  // One process with `first`, one with `second`.
  Outcome run(const Words& first, const Words& second) const {
    return folder.run_command(
        Words{SHARDLOOM_MPIRUN, "--oversubscribe", "--bind-to", "none", "-n", "1", SHARDLOOM_PROGRAM} + first +
        Words{":", "-n", "1", SHARDLOOM_PROGRAM} + second);
  }
  void expect_difference(const Words& first, const Words& second, const std::string& difference) const {
    const Outcome outcome = run(first, second);
    EXPECT_NE(outcome.exit_code, 0) << difference;
    EXPECT_NE(outcome.exit_code, 124) << "it hung: " << difference;
    EXPECT_THAT(outcome.err, HasSubstr("ranks do not train the same: " + difference +
                                       "; start every rank with the same flags, model and data\n"));
    EXPECT_FALSE(std::filesystem::exists(folder.path("metrics.jsonl"))) << "nothing is trained";
  }

  const ProgramFolder folder;
};

constexpr const char* kMoeModel =
    "model_type: qwen3_moe\nvocab_size: 256\nhidden_size: 16\nintermediate_size: 24\nnum_hidden_layers: 2\n"
    "num_attention_heads: 2\nnum_key_value_heads: 1\nhead_dim: 8\nmax_position_embeddings: 32\n"
    "rms_norm_eps: 1.0e-6\nnum_experts: 4\nnum_experts_per_tok: 2\nmoe_intermediate_size: 8\nnorm_topk_prob: true\n"
    "decoder_sparse_step: 1\nmlp_only_layers: []\ntie_word_embeddings: false\n";

// kFourSteps but for the flags that differ.
const Words kTwoProcesses =
    Words{"train", "--data-path", "data", "--seq-length", "16", "--model-config", "model.yaml"} + kSharded +
    Words{"--micro-batch-size", "2"};

TEST_F(MpiJob, WithDifferentFlagsIsRefusedBeforeItsFirstStep) {
  expect_difference(kTwoProcesses + Words{"--seed", "1"}, kTwoProcesses + Words{"--seed", "2"},
                    "--seed: rank 0 has 1, rank 1 has 2");
  expect_difference(kTwoProcesses + Words{"--lr", "0.1", "--train-iters", "5"},
                    kTwoProcesses + Words{"--lr", "0.2", "--train-iters", "7"},
                    "--train-iters: rank 0 has 5, rank 1 has 7; --lr: rank 0 has 0.1, rank 1 has 0.2; "
                    "--lr-decay-iters: rank 0 has 5, rank 1 has 7");
  expect_difference(kTwoProcesses + Words{"--kernels", "pytorch"},
                    kTwoProcesses + Words{"--kernels", "pytorch", "--use-flash-attn"},
                    "--use-flash-attn: rank 0 has none, rank 1 has the flag");
  expect_difference(kTwoProcesses + Words{"--save", "out"}, kTwoProcesses, "--save: rank 0 has out, rank 1 has none");
}

// What ranks share decides which groups there are: no rank waits in one that the other does not make.
TEST_F(MpiJob, WithOtherDegreesIsRefusedBeforeItsFirstStep) {
  folder.write("model.yaml", kMoeModel);
  const std::string sharding = folder.read("fsdp2.yaml");
  const auto with = [&](const std::string& name, const std::string& keys, const Words& more = {}) {
    folder.write(name, sharding + keys);
    return with_value(kTwoProcesses, "--fsdp2-config-path", name) + Words{"--global-batch-size", "4"} + more;
  };
  const std::string experts = "moe_modules: [\"model.layers.{*}.mlp.experts\"]\nexpert_parallel_size: ";
  const std::string file = "fsdp2_config.yaml ";
  expect_difference(with("e1.yaml", experts + "1\n"), with("e2.yaml", experts + "2\n"),
                    file + "expert_parallel_size: rank 0 has 1, rank 1 has 2");
  expect_difference(with("r1.yaml", ""), with("r2.yaml", "ring_attention_size: 2\n"),
                    file + "ring_attention_size: rank 0 has 1, rank 1 has 2");
  expect_difference(with("r2.yaml", "ring_attention_size: 2\n"), with("u2.yaml", "ulysses_parallel_size: 2\n"),
                    file + "ulysses_parallel_size: rank 0 has 1, rank 1 has 2; " + file +
                        "ring_attention_size: rank 0 has 2, rank 1 has 1");
  const std::string tensor = "tensor_parallel_size: 2\n";
  expect_difference(
      with("r1.yaml", ""), with("t2.yaml", tensor),
      file + "sharding_size: rank 0 has 2, rank 1 has 1; " + file + "tensor_parallel_size: rank 0 has 1, rank 1 has 2");
  expect_difference(with("t2.yaml", tensor), with("s2.yaml", tensor + "sequence_parallel: true\n"),
                    file + "sequence_parallel: rank 0 has false, rank 1 has true");
  expect_difference(with("t2.yaml", tensor), with("g2.yaml", tensor + "loss_parallel: false\n"),
                    file + "loss_parallel: rank 0 has true, rank 1 has false");
  expect_difference(with("f.yaml", "", {"--tensor-model-parallel-size", "2"}), with("f.yaml", ""),
                    "--tensor-model-parallel-size: rank 0 has 2, rank 1 has 0; " + file +
                        "sharding_size: rank 0 has 1, rank 1 has 2; " + file +
                        "tensor_parallel_size: rank 0 has 2, rank 1 has 1");
  const Words all = with("all.yaml", ""), none = with("none.yaml", "");
  folder.write("none.yaml", "sharding_size: 1\n" + sharding.substr(sharding.find('\n') + 1));
  expect_difference(all, none, file + "sharding_size: rank 0 has 2, rank 1 has 1");
  expect_difference(with("f.yaml", "", {"--context-parallel-size", "2"}), with("f.yaml", ""),
                    "--context-parallel-size: rank 0 has 2, rank 1 has 0; " + file +
                        "ring_attention_size: rank 0 has 2, rank 1 has 1");
}

// Four ranks share experts and sequences in pairs; the launcher ends the others.
TEST_F(MpiJob, WhoseRanksShareExpertsAndSequencesEndsWithOneThatIsKilled) {
  folder.write("model.yaml", kMoeModel);
  folder.write("fsdp2.yaml", folder.read("fsdp2.yaml") +
                                 "expert_parallel_size: 2\nmoe_modules: [\"model.layers.{*}.mlp.experts\"]\n"
                                 "ring_attention_size: 2\n");
  const Words four{SHARDLOOM_MPIRUN, "-n", "4", "--oversubscribe", "--bind-to", "none"};
  StartedProgram mpirun = folder.start(with_value(kFourSteps, "--train-iters", "1000000"), four);
  ASSERT_TRUE(mpirun.wait_for_steps("metrics.jsonl", 3));
  const auto ranks = children_of(mpirun.pid());
  ASSERT_EQ(ranks.size(), 4U);
  ASSERT_EQ(::kill(ranks[1], SIGKILL), 0);
  const Outcome outcome = mpirun.end();
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_NE(outcome.exit_code, 124) << "it hung: " << outcome.err;
  EXPECT_THAT(outcome.err + outcome.out, HasSubstr("signal 9"));
}

TEST_F(MpiJob, WhereOneRankLoadsOrSavesOtherwiseItIsRefusedBeforeItsFirstStep) {
  const Words save{"--save", "out", "--save-interval", "2"}, load{"--load", "run"};
  ASSERT_EQ(
      folder.run(with_value(kFourSteps, "--train-iters", "2") + Words{"--save", "run", "--save-interval", "2"}, kMpirun)
          .exit_code,
      0);
  std::filesystem::remove(folder.path("metrics.jsonl"));
  expect_difference(kTwoProcesses, kTwoProcesses + load, "--load: rank 0 has none, rank 1 has the flag");
  for (const char* flag : {"--no-load-optim", "--finetune"}) {
    expect_difference(kTwoProcesses + load, kTwoProcesses + load + Words{flag},
                      std::string(flag) + ": rank 0 has none, rank 1 has the flag");
  }
  expect_difference(kTwoProcesses + save, kTwoProcesses + save + Words{"--async-save"},
                    "--async-save: rank 0 has none, rank 1 has the flag");
  expect_difference(kTwoProcesses + save, kTwoProcesses + with_value(save, "--save", "other"),
                    "--save: rank 0 has out, rank 1 has other");
}

// As nodes with disks of their own have it: each rank's folder is whole, and of another run.
TEST_F(MpiJob, RanksThatLoadDifferentRunsAreRefused) {
  for (const char* seed : {"1", "2"}) {
    const Words saved{"--save", std::string("run") + seed, "--save-interval", "2", "--seed", seed};
    ASSERT_EQ(folder.run(with_value(kFourSteps, "--train-iters", "2") + saved, kMpirun).exit_code, 0);
  }
  const Outcome outcome = run(kTwoProcesses + Words{"--load", "run1"}, kTwoProcesses + Words{"--load", "run2"});
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_NE(outcome.exit_code, 124) << "it hung";
  // Whoever finds the difference first ends the other, which repeats its words.
  EXPECT_THAT(outcome.err, ContainsRegex("--load: ranks do not read the same checkpoint in run[12]/iter_0000002: file "
                                         "__0_0.distcp: rank 0 has [^\n]*; put one and the same checkpoint where every "
                                         "rank reads it\n"));
  EXPECT_FALSE(std::filesystem::exists(folder.path("metrics.jsonl"))) << "nothing is trained";
}

TEST_F(MpiJob, WithADifferentScalarOfTheModelIsRefusedByItsName) {
  std::string text = folder.read("model.yaml");
  folder.write("other.yaml", text + "rope_theta: 500000\n");
  folder.write("model.yaml", text + "rope_theta: 1.0e+6\n");
  Words other = kTwoProcesses;
  std::ranges::replace(other, std::string("model.yaml"), std::string("other.yaml"));
  expect_difference(kTwoProcesses, other, "model rope_theta: rank 0 has 1000000, rank 1 has 500000");
}

TEST_F(MpiJob, WithDataOfOneOtherByteIsRefusedWithSizeAndDigest) {
  for (int file = 1; file <= 6; ++file) {
    std::string text = folder.read(fmt::format("data/{}.txt", file));
    if (file == 3) text[500] = '#';
    folder.write(fmt::format("other/{}.txt", file), text);
  }
  Words other = kTwoProcesses;
  std::ranges::replace(other, std::string("data"), std::string("other"));
  const Outcome outcome = run(kTwoProcesses, other);
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_NE(outcome.exit_code, 124) << "it hung";
  EXPECT_THAT(outcome.err, HasSubstr("ranks do not train the same: --data-path, content: rank 0 has "));
  EXPECT_THAT(outcome.err, HasSubstr(" bytes in 6 files with the digest "));
}

// --- Texts

TEST_F(MpiJob, MakesTheTextOfOneRankAndTalks) {
  // Trained to answer in ASCII: the launcher gives its processes a terminal, on which other bytes are escaped.
  ASSERT_EQ(folder.run(with_value(kFourSteps, "--train-iters", "80") + Words{"--save", "out"}).exit_code, 0);
  folder.write("out/chat_template.jinja", "{% for m in messages %}{{ m.content }}\n{% endfor %}");
  folder.write("input", "3\n/wat\n/clear\n5\n");
  const Words drawn{"--temperature", "0.5", "--seed", "4", "--max-new-tokens", "6"};
  const Words generate = Words{"generate", "out", "--prompt", "3 times"} + drawn, chat = Words{"chat", "out"} + drawn;
  const Outcome one = folder.run(generate), two = folder.run(generate, kMpirun);
  EXPECT_EQ(two.exit_code, 0) << two.err;
  EXPECT_EQ(two.out, one.out);
  const std::string from_file = R"(exec "$0" "$@" < input)";
  const Outcome alone = folder.run_shell(from_file, chat);
  const Outcome together =
      folder.run_command(Words{"bash", "-c", from_file} + kMpirun + Words{SHARDLOOM_PROGRAM} + chat);
  EXPECT_EQ(alone.exit_code, 1) << "of the command that is none";
  EXPECT_EQ(together.exit_code, 1);
  EXPECT_EQ(together.out, alone.out);
  EXPECT_THAT(together.err, HasSubstr("shardloom: line 2: /wat is no command; "));
  const Outcome ranks = folder.run(generate + Words{"--nproc-per-node", "2"}, kMpirun);
  EXPECT_EQ(ranks.exit_code, 2);
  EXPECT_THAT(ranks.err, HasSubstr("shardloom: --nproc-per-node is 2, but the launcher started 2 ranks, one a "
                                   "process; leave it out\n"));
}

TEST_F(MpiJob, RefusesProcessesThatWouldMakeDifferentTexts) {
  ASSERT_EQ(folder.run(kFourSteps + Words{"--save", "out"}).exit_code, 0);
  const Outcome outcome =
      run({"generate", "out", "--prompt", "3", "--seed", "1"}, {"generate", "out", "--prompt", "4"});
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_NE(outcome.exit_code, 124) << "it hung";
  EXPECT_THAT(outcome.err, HasSubstr("ranks do not make the same text: "));
  EXPECT_THAT(outcome.err, HasSubstr("the prompt: rank 0 has 3 as the tokens 51, rank 1 has 4 as the tokens 52"));
  EXPECT_THAT(outcome.err, HasSubstr("--seed: rank 0 has 1, rank 1 has 1234; start every rank with the same flags and "
                                     "model\n"));
}

TEST_F(MpiJob, MayDifferInWhatEachRankHasForItself) {
  const Outcome outcome =
      run(kTwoProcesses + Words{"--train-iters", "2", "--compute-threads", "1", "--metrics-path", "a.jsonl"},
          kTwoProcesses + Words{"--train-iters", "2", "--compute-threads", "2", "--metrics-path", "b.jsonl",
                                "--device-executor", "inline"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(folder.metrics("a.jsonl").size(), 2u);
}

}  // namespace
}  // namespace loom::test
