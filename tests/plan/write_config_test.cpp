// Promise: --write-config writes a file and says a command with which training does what the search planned: the same
//          events, bytes and virtual time; only a search has something to write.
// World:   a decoder of two layers on four ranks, planned on an H200 of little memory.
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>
#include <regex>

#include "engine/cli/hub_callbacks.h"
#include "engine/cli/program.h"
#include "engine/cli/words/arguments.h"
#include "engine/core/error.h"
#include "engine/plan/plan_output.h"
#include "tests/plan/plan_and_run.h"
#include "tests/support/files.h"

namespace loom::plan {
namespace {

using nlohmann::ordered_json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Words = std::vector<std::string>;

Words operator+(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

template <class Arguments>
Arguments parsed(const Words& words) {
  std::vector<const char*> argv;
  for (const std::string& word : words) argv.push_back(word.c_str());
  return std::get<Arguments>(cli::parse_arguments(static_cast<int>(argv.size()), argv.data()));
}

class WriteConfig : public ::testing::Test {
 protected:
  WriteConfig() : folder_(test::fresh_folder()) {
    test::write_file(folder_ / "model.yaml",
                     "model_type: llama\nvocab_size: 256\nhidden_size: 48\nintermediate_size: 96\n"
                     "num_hidden_layers: 4\nnum_attention_heads: 4\nnum_key_value_heads: 4\nhead_dim: 12\n"
                     "max_position_embeddings: 128\nrms_norm_eps: 1.0e-6\ntie_word_embeddings: false\n");
    test::write_file(folder_ / "fsdp2.yaml",
                     "sharding_size: auto\nparam_dtype: bf16\nreduce_dtype: fp32\n"
                     "sub_modules_to_wrap: [model.embed_tokens, \"model.layers.{*}\", lm_head]\n");
  }

  Words plan_words(const Words& more) const {
    return Words{"shardloom",
                 "plan",
                 "--model-config",
                 folder_ / "model.yaml",
                 "--data-path=" + (kSource / "LICENSE").string(),
                 "--use-torch-fsdp2",
                 "--fsdp2-config-path",
                 folder_ / "fsdp2.yaml",
                 "--device",
                 "h200",
                 "--json",
                 folder_ / "plan.json",
                 "--write-config",
                 folder_ / "chosen.yaml"} +
           more;
  }

  // The exit status; the text is text_ with each sentence in one line, and the error error_.
  int run(const Words& more) {
    const Words words = plan_words(more);
    std::vector<const char*> argv;
    for (const std::string& word : words) argv.push_back(word.c_str());
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    const int status = cli::program_main(static_cast<int>(argv.size()), argv.data());
    text_ = std::regex_replace(::testing::internal::GetCapturedStdout(), std::regex("\n +"), " ");
    error_ = ::testing::internal::GetCapturedStderr();
    return status;
  }

  // The plan's JSON.
  ordered_json planned(const Words& more) {
    EXPECT_EQ(run(more), 0) << error_;
    return ordered_json::parse(test::read_file(folder_ / "plan.json"));
  }

  // The command does what `plan`, as JSON, says.
  void expect_trained_as_planned(const ordered_json& plan, const Words& command) {
    EXPECT_THAT(command, ::testing::Contains((folder_ / "chosen.yaml").string()));
    const auto job = parsed<job::Job>(command);
    const StepEstimate estimate = estimate_step(job, cli::hub_callbacks(job), profile());
    const ordered_json own = to_json(estimate);
    for (const char* key :
         {"world_size", "micro_batch_size", "micro_batches", "seq_length", "mode", "time", "communication", "volume"}) {
      EXPECT_EQ(own.at(key), plan.at(key)) << key;
    }
    for (const char* key : {"phases", "peak_allocated_bytes", "peak_reserved_bytes"}) {
      EXPECT_EQ(own.at("memory").at(key), plan.at("memory").at(key)) << key;
    }
    expect_same(estimate, run_fourth_step(job, cli::hub_callbacks(job)));
  }

  const std::filesystem::path folder_;
  std::string text_, error_;
};

TEST_F(WriteConfig, TrainsTheRowsOfASweepAsPlanned) {
  const Words sweep{"--world-size", "4", "--seq-length", "32", "--micro-batch-size", "2", "--sweep"};
  ordered_json plan = planned(sweep);
  const std::size_t rows = plan.at("sweep").size();
  ASSERT_GT(rows, 12u);
  EXPECT_EQ(plan["write_config"]["row"], 0) << "the fastest";
  for (const std::size_t row : {std::size_t{0}, rows / 3, 2 * rows / 3, rows - 1}) {
    plan = planned(sweep + Words{"--row", std::to_string(row)});
    const ordered_json& written = plan.at("write_config");
    EXPECT_EQ(written.at("row"), row);
    EXPECT_EQ(written.at("file"), (folder_ / "chosen.yaml").string());
    expect_trained_as_planned(plan.at("sweep").at(row), written.at("command").get<Words>());
    EXPECT_THAT(text_, HasSubstr(fmt::format("/chosen.yaml has the configuration of row {} of the sweep;", row)));
  }
  EXPECT_EQ(run(sweep + Words{"--row", std::to_string(rows)}), 2);
  EXPECT_THAT(error_,
              HasSubstr(fmt::format("--row is {}, but the sweep has {} rows; use 0 to {}\n", rows, rows, rows - 1)));
  EXPECT_THAT(text_, HasSubstr(" configurations fit;")) << "a long search is shown all the same";
}

TEST_F(WriteConfig, TrainsWhatASearchFoundAsPlanned) {
  const ordered_json batch =
      planned({"--world-size", "4", "--seq-length", "32", "--device-memory", "96", "--fit", "micro-batch"});
  EXPECT_TRUE(batch["write_config"]["row"].is_null());
  expect_trained_as_planned(batch, batch.at("write_config").at("command").get<Words>());
  const ordered_json longest = planned({"--world-size", "4", "--micro-batch-size", "3", "--fit", "seq-length"});
  EXPECT_EQ(longest.at("seq_length"), 128) << "the model's positions";
  expect_trained_as_planned(longest, longest.at("write_config").at("command").get<Words>());
}

TEST_F(WriteConfig, HasItsFiguresAndItsCommandInTheFile) {
  test::write_file(folder_ / "a 'b'.yaml", test::read_file(folder_ / "model.yaml"));
  planned({"--seq-length", "32", "--micro-batch-size", "2", "--fit=world-size", "--model-config",
           folder_ / "a 'b'.yaml", "--tokens", "1e9", "--price-per-device-hour=2", "--what-if", "links=0.5"});
  const std::string file = test::read_file(folder_ / "chosen.yaml");
  EXPECT_THAT(file, AllOf(::testing::StartsWith("# LlamaForCausalLM on 1 x h200, as planned: "),
                          HasSubstr("\n#   shardloom train --model-config "), HasSubstr("/a '\\''b'\\''.yaml' "),
                          HasSubstr(" --nproc-per-node 1 --micro-batch-size 2 --seq-length 32 --global-batch-size 2\n"),
                          HasSubstr("\nsharding_size: auto\nparam_dtype: bf16\nreduce_dtype: fp32\n")));
  for (const char* word :
       {"--device", "--json", "--write-config", "--fit", "--world-size", "--tokens", "--price", "--what-if"}) {
    EXPECT_EQ(file.find(word), std::string::npos) << word;
  }
}

// More ranks than a node has devices.
TEST_F(WriteConfig, SaysHowRanksOfSeveralNodesAreStarted) {
  const ordered_json plan =
      planned({"--world-size", "16", "--micro-batch-size", "1", "--fit", "seq-length", "--nproc-per-node=8"});
  const auto command = plan.at("write_config").at("command").get<Words>();
  EXPECT_EQ(Words(command.begin(), command.begin() + 5), (Words{"mpirun", "-n", "16", "shardloom", "train"}));
  EXPECT_THAT(command, ::testing::Not(::testing::Contains(HasSubstr("--nproc-per-node"))));
}

TEST_F(WriteConfig, NeedsASearchAndAFileOfItsKind) {
  const auto refusal = [&](const Words& words) {
    try {
      parsed<cli::PlanArguments>(words);
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const Words plan{"shardloom", "plan", "--model-config", "m.yaml", "--write-config", "x.yaml"};
  const Words sharded{"--use-torch-fsdp2", "--fsdp2-config-path", "f.yaml"};
  EXPECT_EQ(refusal(plan + sharded),
            "--write-config is x.yaml, which gets what a search chose; add --sweep or --fit, or remove it");
  EXPECT_EQ(
      refusal(plan + sharded + Words{"--sweep", "--software", "pytorch-2.3"}),
      "--write-config is x.yaml, but --software pytorch-2.3 plans with the kernels of that release, which training "
      "does not have; remove one of them");
  EXPECT_EQ(refusal(plan + Words{"--fit", "micro-batch"}),
            "--write-config is x.yaml, a fsdp2_config.yaml, but the job has none; add --use-torch-fsdp2 and "
            "--fsdp2-config-path, or remove it");
  EXPECT_EQ(refusal(Words{"shardloom", "plan", "--model-config", "m.yaml", "--row", "2"} + sharded),
            "--row is 2, the row of a sweep that is written; add --sweep and --write-config FILE, or remove it");
  EXPECT_EQ(refusal(Words{"shardloom", "plan", "--model-config", "m.yaml", "--sweep", "--row", "2"} + sharded),
            "--row is 2, the row of a sweep that is written; add --write-config FILE, or remove it");
}

TEST_F(WriteConfig, IsNoInput) {
  EXPECT_EQ(run({"--world-size", "4", "--fit", "seq-length", "--write-config", folder_ / "fsdp2.yaml"}), 2);
  EXPECT_THAT(error_, AllOf(HasSubstr("--write-config: "),
                            HasSubstr(" is also read by --fsdp2-config-path and would be lost; give another path")));
}

}  // namespace
}  // namespace loom::plan
