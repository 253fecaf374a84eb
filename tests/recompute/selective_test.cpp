// Promise: selective recompute keeps the results of attention, or also of every second matrix product, and computes the
//          rest again; values and gradients are bit for bit those without recompute.
// World:   one rank; a Llama block of hidden 32, MLP 48, 4 heads, on 1 x 16 tokens in fp32.
#include <gmock/gmock.h>
#include <map>

#include "engine/device/recorder.h"
#include "engine/nn/layers.h"
#include "tests/recompute/toys.h"
#include "tests/support/files.h"

namespace loom {
namespace {

using recompute::Keep;
using recompute::RecomputeError;
using test::Floats;
using test::message_of;

constexpr std::int64_t kHidden = 32, kMlp = 48, kHeads = 4, kTokens = 16;
constexpr std::int64_t kHiddenBytes = kTokens * kHidden * 4, kMlpBytes = kTokens * kMlp * 4;
constexpr std::int64_t kLogSumExpBytes = 512;  // 16 tokens x 4 heads in fp32, rounded up as all blocks are

class Block final : public nn::Module {
 public:
  std::string_view type_name() const override { return "Block"; }
  std::function<Tensor(const Tensor&)> after = [](const Tensor& h) { return h; };

 protected:
  nn::Value forward(const nn::Args& args) override {
    const Tensor& x = args.tensor(0);
    const auto heads = [](const Tensor& t) { return ops::reshape(t, {1, kTokens, kHeads, kHidden / kHeads}); };
    const Tensor q = heads(q_(x)), k = heads(k_(x)), v = heads(v_(x));
    const Tensor attended = ops::reshape(ops::attention(q, k, v, 0.5), {1, kTokens, kHidden});
    const Tensor h = ops::add(x, o_(attended).tensor());
    const Tensor gate = gate_(h), up = up_(h);
    return after(ops::add(h, down_(ops::swiglu(gate, up)).tensor()));
  }

 private:
  nn::Module& add(const char* name, std::int64_t in, std::int64_t out) {
    return register_module(name, std::make_shared<nn::Linear>(in, out, false, 0.2));
  }
  nn::Module& q_ = add("q", kHidden, kHidden);
  nn::Module& k_ = add("k", kHidden, kHidden);
  nn::Module& v_ = add("v", kHidden, kHidden);
  nn::Module& o_ = add("o", kHidden, kHidden);
  nn::Module& gate_ = add("gate", kHidden, kMlp);
  nn::Module& up_ = add("up", kHidden, kMlp);
  nn::Module& down_ = add("down", kMlp, kHidden);
};

Tensor block_input() {
  Floats values;
  for (std::int64_t i = 0; i < kTokens * kHidden; ++i) values.push_back(0.01F * static_cast<float>(i % 37) - 0.15F);
  const Tensor x = Tensor::from(values, {1, kTokens, kHidden});
  x.set_requires_grad(true);
  return x;
}

std::shared_ptr<Block> make_block(std::optional<Keep> keep, bool early_stop = true) {
  auto block = std::make_shared<Block>();
  test::fill(*block);
  if (keep) {
    recompute::checkpoint(*block,
                          {.path = "layers.0", .use_reentrant = false, .early_stop = early_stop, .keep = *keep});
  }
  return block;
}

std::vector<Floats> run(std::optional<Keep> keep, bool early_stop = true, bool inside_another = false) {
  test::OneRank rank;
  const auto block = make_block(keep, early_stop);
  test::Chain chain({block, make_block(keep, early_stop)});
  if (inside_another) recompute::checkpoint(chain, {.path = "", .use_reentrant = false});
  const Tensor x = block_input();
  const Tensor y = chain(x);
  autograd::backward(ops::mean(y));
  std::vector<Floats> values{test::floats(y), test::floats(x.grad())};
  for (const Tensor& parameter : chain.parameters()) values.push_back(test::floats(parameter.grad()));
  return values;
}

TEST(SelectiveRecompute, GivesTheBitsOfNoRecompute) {
  const std::vector<Floats> plain = run(std::nullopt);
  for (const Keep keep : {Keep::kSelectedOps, Keep::kSelectedOpsNeeded, Keep::kAttention}) {
    EXPECT_EQ(run(keep), plain);
    EXPECT_EQ(run(keep, /*early_stop=*/false), plain);
    EXPECT_EQ(run(keep, /*early_stop=*/true, /*inside_another=*/true), plain);
  }
}

// Kernels of a step, by name.
std::map<std::string, int> kernels(std::optional<Keep> keep, bool early_stop = true) {
  test::OneRank rank;
  const auto block = make_block(keep, early_stop);
  const Tensor x = block_input();
  const device::Recorder recorder(rank.device());
  autograd::backward(ops::mean((*block)(x)));
  const device::Recording recording = recorder.recording();
  std::map<std::string, int> counts;
  for (const device::Entry& entry : recording.entries) ++counts[recording.text(entry.name)];
  return counts;
}

TEST(SelectiveRecompute, ComputesOnlyTheOtherProductsAgain) {
  EXPECT_EQ(kernels(std::nullopt)["linear"], 7);
  // Up to what the last product saves: q k v o gate up; down is never computed again.
  EXPECT_EQ(kernels(Keep::kNothing)["linear"], 7 + 6);
  EXPECT_EQ(kernels(Keep::kNothing)["attention"], 2);
  for (const Keep keep : {Keep::kSelectedOps, Keep::kSelectedOpsNeeded}) {
    EXPECT_EQ(kernels(keep)["linear"], 7 + 3);  // k, o, up
    EXPECT_EQ(kernels(keep)["attention"], 1);
    EXPECT_EQ(kernels(keep)["swiglu"], 2);
  }
  EXPECT_EQ(kernels(Keep::kAttention)["linear"], 7 + 6);
  EXPECT_EQ(kernels(Keep::kAttention)["attention"], 1);
  // To the end of forward: down is recalled where it was kept.
  EXPECT_EQ(kernels(Keep::kSelectedOps, false)["linear"], 7 + 3);
  EXPECT_EQ(kernels(Keep::kSelectedOpsNeeded, false)["linear"], 7 + 4);
}

// Activation bytes that forward leaves, input and result not counted.
std::int64_t kept_bytes(std::optional<Keep> keep, bool dry_run) {
  test::OneRank rank({.dry_run = dry_run});
  const auto block = make_block(keep);
  const Tensor x = block_input();
  const auto activations = [&] { return rank.stats().by_category[device::MemCategory::kActivation]; };
  const std::int64_t before = activations();
  const Tensor y = (*block)(x);
  const std::int64_t kept = activations() - before - kHiddenBytes;
  autograd::backward(ops::mean(y));
  EXPECT_EQ(activations() - before, kHiddenBytes);  // y: nothing that was kept outlives backward
  return kept;
}

TEST(SelectiveRecompute, KeepsAttentionAndEverySecondProductInRunsAndInDryRuns) {
  // q, v, attention's output; its log-sum-exp; gate.
  const std::int64_t needed = 3 * kHiddenBytes + kLogSumExpBytes + kMlpBytes;
  for (const bool dry_run : {false, true}) {
    EXPECT_EQ(kept_bytes(Keep::kNothing, dry_run), 0);
    EXPECT_EQ(kept_bytes(Keep::kSelectedOpsNeeded, dry_run), needed);
    EXPECT_EQ(kept_bytes(Keep::kSelectedOps, dry_run), needed + kHiddenBytes);  // and down
    EXPECT_EQ(kept_bytes(Keep::kAttention, dry_run), kHiddenBytes + kLogSumExpBytes);
  }
}

TEST(SelectiveRecompute, ReentrantIsRefused) {
  EXPECT_EQ(message_of<ConfigError>([] {
              Block block;
              recompute::checkpoint(block, {.path = "layers.0", .keep = Keep::kSelectedOps});
            }),
            "recompute of 'layers.0' keeps results of operators, which use_reentrant: true cannot; use use_reentrant: "
            "false");
}

TEST(SelectiveRecompute, AForwardThatComputesMoreTheSecondTimeIsRefused) {
  test::OneRank rank;
  const auto block = make_block(Keep::kSelectedOps, /*early_stop=*/false);
  const auto extra = std::make_shared<nn::Linear>(kHidden, kHidden, false, 0.1);
  test::fill(*extra);
  bool again = false;
  block->after = [&](const Tensor& h) {
    Tensor result = h;
    for (int i = 0; again && i < 2; ++i) result = (*extra)(result).tensor();
    again = true;
    return result;
  };
  const Tensor loss = ops::mean((*block)(block_input()));
  EXPECT_EQ(
      message_of<RecomputeError>([&] { autograd::backward(loss); }),
      "[rank 0] recompute of 'layers.0': forward kept 4 results of matrix products, and came to one more when it ran "
      "again; it must do the same both times");
}

TEST(SelectiveRecompute, ASecondBackwardIsRefused) {
  test::OneRank rank;
  const auto linear = std::make_shared<nn::Linear>(kHidden, kHidden, false, 0.1);
  test::Fn block(1, [&](const nn::Args& args, const Tensor&) -> nn::Value {
    return nn::ValueList{ops::tanh((*linear)(args.tensor(0)).tensor()), ops::tanh((*linear)(args.tensor(1)).tensor())};
  });
  test::fill(*linear);
  test::fill(block);
  recompute::checkpoint(block, {.path = "pair", .use_reentrant = false, .keep = Keep::kSelectedOps});
  const nn::Value out = block(block_input(), block_input());
  autograd::backward(ops::mean(out.list()[0]));
  const Tensor second = ops::mean(out.list()[1]);
  EXPECT_EQ(
      message_of<RecomputeError>([&] { autograd::backward(second); }),
      "[rank 0] recompute of 'pair': a second backward came to it, and the results it kept went with the first; go "
      "backward once from all losses together, or keep nothing");
}

TEST(SelectiveRecompute, AResultThatWasWrittenToIsRefused) {
  test::OneRank rank;
  const auto linear = std::make_shared<nn::Linear>(kHidden, kHidden, false, 0.1);
  Tensor written;
  test::Fn block(1, [&](const nn::Args& args, const Tensor&) -> nn::Value {
    const Tensor product = (*linear)(args.tensor(0));
    if (!written.defined()) written = product.detach();
    return ops::tanh(product);
  });
  test::fill(*linear);
  test::fill(block);
  recompute::checkpoint(block, {.path = "head", .use_reentrant = false, .keep = Keep::kSelectedOps});
  const Tensor loss = ops::mean(block(block_input()));
  written.fill(0);
  EXPECT_EQ(message_of<RecomputeError>([&] { autograd::backward(loss); }),
            "[rank 0] recompute of 'head': a kept result ('tensor') was written to between forward and backward; keep "
            "nothing, or write to a copy");
}

}  // namespace
}  // namespace loom
