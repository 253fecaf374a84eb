// Promise: the longest sequence that fits is exact: the next length does not fit or is refused, and the answer says
//          which, and why; ranks that share a sequence divide it, and the given batch stays.
// World:   the quick start's model, with more positions, on four devices of little memory; decoders of two layers.
#include "engine/plan/longest_sequence.h"

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "engine/cli/hub_callbacks.h"
#include "engine/core/error.h"
#include "engine/plan/plan_search.h"
#include "tests/support/files.h"
#include "tests/support/small_plan.h"

namespace loom::plan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

train::TrainSections decoder(int positions, const std::string& keys = "") {
  train::TrainSections a = arguments();
  const std::filesystem::path folder = test::fresh_folder();
  a.model.model_config = test::write_file(
      folder / "model.yaml",
      fmt::format("model_type: llama\nvocab_size: 300\nhidden_size: 48\nintermediate_size: 96\nnum_hidden_layers: 2\n"
                  "num_attention_heads: 6\nnum_key_value_heads: 6\nhead_dim: 8\nmax_position_embeddings: {}\n"
                  "rms_norm_eps: 1.0e-6\ntie_word_embeddings: false\n",
                  positions));
  a.parallel.fsdp2_config_path = test::write_file(
      folder / "fsdp2.yaml",
      "sharding_size: auto\nsub_modules_to_wrap: [model.embed_tokens, \"model.layers.{*}\", lm_head]\n" + keys);
  a.data.data_path.clear();
  a.schedule.micro_batch_size = 1;
  a.schedule.global_batch_size = a.launch.ranks;
  return a;
}

LongestSequence longest(const train::TrainSections& a, std::int64_t memory_bytes, SearchOptions options = {}) {
  const train::PretrainCallbacks calls = cli::hub_callbacks(a);
  const virtual_time::HardwareProfile device = profile(memory_bytes);
  return PlanSearch(a, calls, device, options).longest_sequence();
}

bool fits(train::TrainSections a, int seq_length, std::int64_t memory_bytes) {
  a.data.seq_length = seq_length;
  try {
    estimate_step(a, cli::hub_callbacks(a), profile(memory_bytes));
    return true;
  } catch (const OutOfMemoryError&) {
    return false;
  }
}

TEST(LongestSequence, IsExactInStepsOf128) {
  const train::TrainSections a = decoder(1 << 20);
  for (const std::int64_t memory : {96 * kMiB, 160 * kMiB}) {
    const LongestSequence found = longest(a, memory);
    const int length = found.fit.choice.seq_length;
    EXPECT_EQ(found.step, 128);
    EXPECT_EQ(length % 128, 0);
    EXPECT_EQ(found.fit.plan.seq_length, length);
    EXPECT_TRUE(fits(a, length, memory)) << length;
    EXPECT_FALSE(fits(a, length + 128, memory)) << length;
    EXPECT_EQ(found.next, length + 128);
    EXPECT_FALSE(found.is_refused);
    EXPECT_THAT(found.why, AllOf(StartsWith("out of memory in "), HasSubstr(" MiB free"), Not(HasSubstr("\n"))));
  }
  EXPECT_LT(longest(a, 96 * kMiB).fit.choice.seq_length, longest(a, 160 * kMiB).fit.choice.seq_length);
}

TEST(LongestSequence, EndsAtTheLastPositionOfTheModelToTheToken) {
  const LongestSequence found = longest(decoder(1000), std::int64_t{1} << 37);
  EXPECT_EQ(found.fit.choice.seq_length, 1000);
  EXPECT_EQ(found.step, 1);
  EXPECT_EQ(found.next, 1001);
  EXPECT_TRUE(found.is_refused);
  EXPECT_EQ(found.why,
            "a sequence of 1001 tokens, but the model's max_position_embeddings is 1000; use shorter sequences");
  EXPECT_EQ(longest(decoder(100), std::int64_t{1} << 37).fit.choice.seq_length, 100) << "below a step";
  EXPECT_EQ(longest(decoder(1024), std::int64_t{1} << 37).fit.choice.seq_length, 1024) << "a multiple of a step";
}

// Three ranks that share matrices, times 128: 384. Two of a ring that cut a sequence into four, times three: 12.
TEST(LongestSequence, IsSharedOutByTheRanksOfASequence) {
  train::TrainSections a = decoder(1 << 20, "tensor_parallel_size: 3\nsequence_parallel: true\n");
  a.launch.ranks = 3;
  a.schedule.global_batch_size = 1;
  const LongestSequence shared = longest(a, 96 * kMiB);
  EXPECT_EQ(shared.step, 384);
  EXPECT_EQ(shared.fit.choice.seq_length % 384, 0);
  EXPECT_FALSE(fits(a, shared.fit.choice.seq_length + 384, 96 * kMiB));
  train::TrainSections ring = decoder(1000, "ring_attention_size: 2\nulysses_parallel_size: 3\n");
  ring.launch.ranks = 6;
  ring.schedule.global_batch_size = 1;
  const LongestSequence refused = longest(ring, std::int64_t{1} << 37, {.longest_sequence = 1000});
  EXPECT_THAT(refused.why, StartsWith("the model takes at most 1000 tokens "));
  EXPECT_EQ(refused.step, 12);
  EXPECT_EQ(refused.fit.choice.seq_length, 1000 / 12 * 12);
}

TEST(LongestSequence, KeepsTheBatch) {
  train::TrainSections a = decoder(1 << 20);
  a.schedule.micro_batch_size = 2;
  a.schedule.global_batch_size = kRanks * 6;
  const LongestSequence found = longest(a, 96 * kMiB, {.global_batch_size = kRanks * 6});
  EXPECT_EQ(found.fit.plan.micro_batch, 2);
  EXPECT_EQ(found.fit.plan.micro_batches, 3);
  EXPECT_EQ(found.fit.plan.throughput.tokens, std::int64_t{kRanks} * 6 * found.fit.choice.seq_length);
}

TEST(LongestSequence, EndsWithTheData) {
  train::TrainSections a = decoder(1 << 20);
  a.data.data_path = {test::write_file(a.model.model_config->parent_path() / "text", std::string(5000, 'a'))};
  a.data.held_out_fraction = 0;
  const LongestSequence found = longest(a, std::int64_t{1} << 37);
  EXPECT_TRUE(found.is_refused) << found.why;
  EXPECT_LT(found.fit.choice.seq_length, 5000);
  EXPECT_GT(found.fit.choice.seq_length, 128);
}

TEST(LongestSequence, IsRefusedWhereNoneGoes) {
  EXPECT_THAT([] { longest(decoder(1 << 20), kMiB); },
              ::testing::ThrowsMessage<ConfigError>(
                  "a sequence of 128 tokens does not fit on 4 x h200; plan without --fit to see what would help"));
  EXPECT_THAT([] { longest(decoder(1 << 20, "expert_parallel_size: 3\n"), kMiB); },
              ::testing::ThrowsMessage<ConfigError>(HasSubstr("expert_parallel_size is 3, but 4 ranks are running")));
}

TEST(LongestSequence, HasTheSameFiguresInTextAndJson) {
  const LongestSequence found = longest(decoder(1 << 20), 96 * kMiB);
  const int length = found.fit.choice.seq_length;
  EXPECT_THAT(to_text(found), StartsWith(fmt::format("the longest sequence: {} tokens, in steps of 128\n"
                                                     "  {} tokens do not fit: out of memory in ",
                                                     length, length + 128)));
  EXPECT_THAT(to_text(longest(decoder(1000), std::int64_t{1} << 37)),
              StartsWith("the longest sequence: 1000 tokens, in steps of 1\n"
                         "  1001 tokens are refused: a sequence of 1001 tokens, but the model's "));
  const nlohmann::ordered_json json = to_json(found);
  EXPECT_EQ(
      json["longest_sequence"],
      nlohmann::ordered_json(
          {{"seq_length", length}, {"step", 128}, {"next", length + 128}, {"why", found.why}, {"refused", false}}));
  EXPECT_EQ(json["seq_length"], length) << "beside the plan";
}

}  // namespace
}  // namespace loom::plan
