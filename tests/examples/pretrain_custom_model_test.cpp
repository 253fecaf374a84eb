// Promise: an architecture of the user's own trains, sharded as its _fully_shard says, to the same losses on any number
//          of ranks, and what is wrong in its configuration is named.
// World:   the built example; one and two ranks as threads; README.md as text.
#include <cmath>
#include <gmock/gmock.h>

#include "tests/support/program.h"

namespace loom::test {
namespace {

using ::testing::HasSubstr;

const std::string kSource = LOOM_SOURCE_DIR;
const std::string kExample = kSource + "/examples/pretrain_custom_model/";
const Words kSteps{"--data-path",
                   kSource + "/README.md",
                   "--held-out-fraction",
                   "0",
                   "--seq-length",
                   "32",
                   "--global-batch-size",
                   "8",
                   "--micro-batch-size",
                   "4",
                   "--lr",
                   "3e-3",
                   "--train-iters",
                   "12",
                   "--metrics-path",
                   "metrics.jsonl"};
const Words kShardedByItself{"--use-torch-fsdp2", "--fsdp2-config-path", kExample + "fsdp2_config.yaml"};

class PretrainCustomModel : public ::testing::Test {
 protected:
  Outcome train(const Words& more, const std::string& config = kExample + "model.yaml") const {
    return folder_.run(kSteps + Words{"--config", config} + more);
  }
  std::vector<double> losses(const Words& more, const std::string& config = kExample + "model.yaml") const {
    const Outcome outcome = train(more, config);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    std::vector<double> found;
    for (const auto& line : folder_.metrics("metrics.jsonl")) found.push_back(line.at("loss"));
    return found;
  }

  const ProgramFolder folder_;
};

TEST_F(PretrainCustomModel, LearnsTheSameOnAnyNumberOfRanks) {
  const auto alone = losses({});
  ASSERT_EQ(alone.size(), 12u);
  EXPECT_NEAR(alone.front(), std::log(256), 0.2);
  EXPECT_LT(alone.back(), alone.front() - 1);
  const auto sharded = losses(kShardedByItself + Words{"--nproc-per-node", "2"});
  ASSERT_EQ(sharded.size(), 12u);
  for (std::size_t i = 0; i < 12; ++i) EXPECT_NEAR(sharded[i], alone[i], 1e-4) << "step " << i;
}

TEST_F(PretrainCustomModel, IsShardedAsItsOwnStrategySays) {
  const Outcome outcome = train(kShardedByItself + Words{"--nproc-per-node", "2"});
  EXPECT_EQ(outcome.err, "");
  EXPECT_THAT(outcome.out, HasSubstr("ParallelDecoder of 214592 parameters on 2 ranks"));
  EXPECT_THAT(outcome.out, ::testing::ContainsRegex("\nnorm, head +16448 +64.2 +0.00% +false"));
  EXPECT_THAT(outcome.out, ::testing::ContainsRegex("\nblocks.0 +43392 +169.5 +0.00% +true +1 "));
  EXPECT_THAT(outcome.out, HasSubstr("(root) owns positions.weight\n"));
}

TEST_F(PretrainCustomModel, FreezesWhatItsConfigurationSays) {
  folder_.write("frozen.yaml",
                "model_id: parallel_decoder\nvocab_size: 256\nhidden_size: 64\nnum_heads: 4\nnum_blocks: 4\n"
                "max_positions: 128\nfreeze_positions: true\n");
  const auto trained = losses({});
  const auto frozen = losses({}, "frozen.yaml");
  ASSERT_EQ(frozen.size(), trained.size());
  EXPECT_EQ(frozen.front(), trained.front());
  EXPECT_NE(frozen.back(), trained.back());
}

TEST_F(PretrainCustomModel, WhatIsWrongInItsConfigurationIsNamed) {
  folder_.write("heads.yaml",
                "model_id: parallel_decoder\nvocab_size: 256\nhidden_size: 64\nnum_heads: 3\nnum_blocks: 4\n"
                "max_positions: 128\n");
  const Outcome heads = train({}, "heads.yaml");
  EXPECT_EQ(heads.exit_code, 2);
  EXPECT_EQ(heads.err,
            "pretrain_custom_model: heads.yaml:3:1: hidden_size is 64; it must be a multiple of num_heads (3)\n");
  folder_.write("name.yaml", "model_id: parallel_decoderr\n");
  EXPECT_THAT(train({}, "name.yaml").err, HasSubstr("did you mean 'parallel_decoder'?"));
  folder_.write("key.yaml",
                "model_id: parallel_decoder\nvocab_size: 256\nhidden_size: 64\nnum_heads: 4\nnum_blocks: 4\n"
                "max_positions: 128\nfreeze_position: true\n");
  EXPECT_EQ(train({}, "key.yaml").err,
            "pretrain_custom_model: key.yaml:7:1: unknown key 'freeze_position'; did you mean 'freeze_positions'?\n");
}

}  // namespace
}  // namespace loom::test
