// Promise: the flags of swapped activations are read as MindSpeed has them; what does not go together is refused in one
//          line with what to do.
// World:   command lines; no file is read.
#include <gmock/gmock.h>

#include "tests/cli/parsed.h"

namespace loom::cli {
namespace {

using ::testing::ElementsAre;

const launch::Start kOneCore{.cores = 1};

Words command_line(const std::string& command, const Words& more) {
  const Words data = command == "train" ? Words{"--data-path", "d.txt"} : Words{};
  return Words{command, "--model-config", "m.yaml"} + data + more;
}

job::Job train(const Words& more) { return std::get<job::Job>(parsed(command_line("train", more), kOneCore)); }
PlanArguments plan(const Words& more) { return std::get<PlanArguments>(parsed(command_line("plan", more), kOneCore)); }
std::string refusal_of(const std::string& command, const Words& more) {
  return refusal(command_line(command, more), kOneCore);
}

TEST(SwapFlags, AreOffAtFirst) {
  const job::Job a = train({});
  EXPECT_FALSE(a.swap.swap_attention || a.swap.smart_swap || a.swap.swaps());
  EXPECT_THAT(a.swap.swap_modules, ElementsAre("input_norm", "self_attention", "post_attention_norm"));
}

TEST(SwapFlags, AreRead) {
  EXPECT_TRUE(train({"--swap-attention"}).swap.swap_attention);
  EXPECT_THAT(train({"--swap-attention", "--swap-modules", "self_attention,mlp"}).swap.swap_modules,
              ElementsAre("self_attention", "mlp"));
  EXPECT_THAT(train({"--swap-attention", "--swap_modules", "mlp", "mlp,input_norm"}).swap.swap_modules,
              ElementsAre("mlp", "input_norm"));
  EXPECT_EQ(train({"--smart-swap", "--smart-swap-device-size", "512"}).swap.smart_swap_device_size, 512);
  EXPECT_TRUE(plan({"--smart-swap"}).train.swap.smart_swap);
  EXPECT_EQ(train({"--smart-swap", "--smart-swap-device-size", "9", "--report-device", "h200"}).report.device, "h200");
}

TEST(SwapFlags, ThatDoNotFitAreRefused) {
  EXPECT_EQ(refusal_of("train", {"--swap-modules", "mlp"}),
            "--swap-modules is given, but --swap-attention is not, so nothing is swapped; add it");
  EXPECT_EQ(refusal_of("train", {"--swap-attention", "--swap-modules", "mlp,"}),
            "--swap-modules is mlp,, with an empty name in it; use a,b,c");
  EXPECT_EQ(refusal_of("train", {"--smart-swap-device-size", "8"}),
            "--smart-swap-device-size is 8, but --smart-swap is not given, so nothing is chosen; add it");
  EXPECT_EQ(refusal_of("train", {"--smart-swap", "--smart-swap-device-size", "0"}),
            "--smart-swap-device-size is 0; use a whole number of at least 1");
  EXPECT_EQ(refusal_of("train", {"--smart-swap", "--smart-swap-device-size", "9000000000000"}),
            "--smart-swap-device-size is 9000000000000 MiB; use at most 1099511627776");
  EXPECT_EQ(refusal_of("train", {"--smart-swap"}),
            "--smart-swap is given without --smart-swap-device-size, and the memory of this machine is no device's; "
            "give the MiB that a step has to fit");
  EXPECT_EQ(refusal_of("plan", {"--smart-swap", "--swap-attention"}),
            "--smart-swap and --swap-attention are both given, and both say what is swapped; remove one of them");
}

TEST(SwapFlags, WantFusedAttention) {
  EXPECT_EQ(refusal_of("train", {"--swap-attention", "--kernels", "pytorch"}),
            "--swap-attention is given, but attention is composed of products and softmax, whose weights would be "
            "swapped too; add --use-flash-attn, or use --kernels fast");
  EXPECT_TRUE(train({"--swap-attention", "--kernels", "pytorch", "--use-flash-attn"}).swap.swap_attention);
}

TEST(SwapFlags, AreNoSearchBesideAnother) {
  EXPECT_EQ(refusal_of("plan", {"--smart-swap", "--sweep"}),
            "--smart-swap and --sweep are both given, and each is a search of its own; remove one of them");
  EXPECT_EQ(refusal_of("plan", {"--smart-swap", "--fit", "micro-batch"}),
            "--smart-swap and --fit are both given, and each is a search of its own; remove one of them");
}

}  // namespace
}  // namespace loom::cli
