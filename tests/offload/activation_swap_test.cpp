// Promise: swapped activations leave the device in forward and are back before backward needs them; everything computed
//          is the same, bit by bit, and what stays on the device is what the header says.
// World:   one rank; a chain of L blocks tanh(x . w^T) of width 16 on 8 rows: every activation has 512 bytes.
#include "offload/activation_swap.h"

#include <cstring>
#include <gmock/gmock.h>

#include "engine/core/error.h"
#include "engine/device/recorder.h"
#include "engine/nn/chunk_mbs.h"
#include "engine/nn/init.h"
#include "engine/nn/layers.h"
#include "engine/tensor/ops/composed.h"
#include "recompute/checkpoint.h"
#include "recompute/discarding.h"
#include "tests/support/files.h"
#include "tests/support/issued.h"
#include "tests/support/one_rank.h"
#include "tests/support/toy_models.h"

namespace loom::offload {
namespace {

using device::ExecutorKind;
using device::MemCategory;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr std::int64_t kWidth = 16;
constexpr std::int64_t kRows = 8;
constexpr std::int64_t kTensorBytes = 4 * kWidth * kRows;

enum class Kind { kPlain, kReentrant, kRecorded };
constexpr Kind kKinds[] = {Kind::kPlain, Kind::kReentrant, Kind::kRecorded};

struct Scene {
  int blocks = 5;
  Kind kind = Kind::kPlain;
  std::optional<SwapWhat> what = {};  // none: nothing is swapped
  bool pin_memory = false;
  std::optional<std::int64_t> rows_at_a_time = {};
  ExecutorKind executor = ExecutorKind::kInline;
  std::shared_ptr<device::HostAllocator> allocator = nullptr;
};

Scene with(Scene scene, std::optional<SwapWhat> what) {
  scene.what = what;
  return scene;
}

std::vector<SwapBlock> blocks_of(test::ToyChain& chain, SwapWhat what) {
  std::vector<SwapBlock> blocks;
  for (std::size_t i = 0; i < chain.layers.size(); ++i) {
    blocks.push_back({.path = "layers." + std::to_string(i), .module = &chain.layers[i]});
    if (what == SwapWhat::kSavedInside) blocks.back().inside = {&chain.layers[i]};
    if (what == SwapWhat::kChosen) blocks.back().ordinals = {0};
  }
  return blocks;
}

// A chain on a device of its own.
class Chain {
 public:
  explicit Chain(const Scene& scene)
      : rank_({.executor = scene.executor, .host_allocator = scene.allocator}),
        chain_(test::whole_chain(kWidth, scene.blocks)) {
    for (int i = 0; i < scene.blocks && scene.kind != Kind::kPlain; ++i) {
      recompute::checkpoint(chain_->layers[static_cast<std::size_t>(i)],
                            {.path = "block", .use_reentrant = scene.kind == Kind::kReentrant});
    }
    if (scene.what) {
      swap_activations(blocks_of(*chain_, *scene.what), {.what = *scene.what, .pin_memory = scene.pin_memory});
    }
    for (std::size_t i = 0; i < chain_->layers.size() && scene.rows_at_a_time; ++i) {
      nn::chunk_mbs(chain_->layers[i], {.path = "block", .chunk_mbs = *scene.rows_at_a_time});
    }
  }

  Tensor forward(int index) { return ops::mean((*chain_)(test::toy_input(index, kRows, kWidth))); }
  test::ToyChain& chain() { return *chain_; }
  device::Device& device() { return rank_.device(); }
  std::int64_t activations() const { return rank_.stats().by_category[MemCategory::kActivation]; }
  std::int64_t host_bytes() { return rank_.device().host_memory().stats().by_category[MemCategory::kActivation]; }
  std::int64_t peak_activations() const { return rank_.stats().peak_by_category[MemCategory::kActivation]; }

 private:
  test::OneRank rank_;
  std::shared_ptr<test::ToyChain> chain_;
};

// Two micro-batches; their losses and the gradients.
std::vector<double> trained(const Scene& scene) {
  Chain run(scene);
  std::vector<double> values;
  for (int index : {0, 1}) {
    const Tensor loss = run.forward(index);
    autograd::backward(loss);
    values.push_back(loss.item());
  }
  for (const auto& [path, gradient] : test::gradients(run.chain())) {
    values.insert(values.end(), gradient.begin(), gradient.end());
  }
  EXPECT_EQ(run.host_bytes(), 0) << "nothing waits on the host behind backward";
  return values;
}

bool same_bits(const std::vector<double>& a, const std::vector<double>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0;
}

TEST(SwappedActivations, GiveTheSameBits) {
  for (const Kind kind : kKinds) {
    for (const ExecutorKind executor : {ExecutorKind::kInline, ExecutorKind::kThreaded}) {
      const Scene scene{.kind = kind, .executor = executor};
      const std::vector<double> unswapped = trained(scene);
      ASSERT_GT(unswapped.size(), 6u * kWidth * kWidth);
      for (const SwapWhat what : {SwapWhat::kFirstArgument, SwapWhat::kSavedInside, SwapWhat::kChosen}) {
        for (const bool pin : {false, true}) {
          Scene swapped = with(scene, what);
          swapped.pin_memory = pin;
          EXPECT_TRUE(same_bits(trained(swapped), unswapped))
              << static_cast<int>(kind) << static_cast<int>(what) << pin << (executor == ExecutorKind::kThreaded);
        }
      }
    }
  }
}

// --- What is where

struct Kept {
  std::int64_t device = 0;
  std::int64_t host = 0;
  std::int64_t peak = 0;  // of forward and backward
};

Kept kept(const Scene& scene) {
  Chain run(scene);
  const std::int64_t before = run.activations();
  Kept result;
  const Tensor loss = run.forward(0);
  result.device = run.activations() - before;
  result.host = run.host_bytes();
  autograd::backward(loss);
  result.peak = run.peak_activations() - before;
  return result;
}

TEST(SwappedInputs, LeaveTheDeviceButForTheLastBlock) {
  for (const Kind kind : {Kind::kReentrant, Kind::kRecorded}) {
    const Scene scene{.blocks = 5, .kind = kind};
    const Kept swapped = kept(with(scene, SwapWhat::kFirstArgument));
    EXPECT_EQ(kept(scene).device - swapped.device, 4 * kTensorBytes);
    EXPECT_EQ(swapped.host, 4 * kTensorBytes);
  }
}

// A piece leaves when the next one, of its block or of the next, saves. On the device each of the three pieces of a
// block takes the 512 bytes that an allocation is rounded up to.
TEST(SwappedInputs, LeaveTheDeviceInPiecesToo) {
  for (const Kind kind : {Kind::kReentrant, Kind::kRecorded}) {
    const Scene scene{.blocks = 5, .kind = kind, .rows_at_a_time = 3};
    const Kept swapped = kept(with(scene, SwapWhat::kFirstArgument));
    EXPECT_EQ(kept(scene).device - swapped.device, 4 * 3 * 512);
    EXPECT_EQ(swapped.host, 4 * kTensorBytes);
    EXPECT_TRUE(same_bits(trained(with(scene, SwapWhat::kFirstArgument)), trained(scene)));
  }
}

TEST(SwappedInputs, MakeThePeakIndependentOfTheNumberOfBlocks) {
  for (const Kind kind : {Kind::kReentrant, Kind::kRecorded}) {
    const auto peak = [&](int blocks, std::optional<SwapWhat> what) {
      return kept({.blocks = blocks, .kind = kind, .what = what}).peak;
    };
    EXPECT_EQ(peak(12, {}) - peak(6, {}), 6 * kTensorBytes);
    EXPECT_EQ(peak(12, SwapWhat::kFirstArgument), peak(6, SwapWhat::kFirstArgument));
    // Two inputs are kept at a time where there were six.
    EXPECT_LE(peak(6, SwapWhat::kFirstArgument), peak(2, {}) + kTensorBytes);
  }
}

TEST(SwappedInputs, AreNotSwappedByAnEvaluation) {
  Chain run({.what = SwapWhat::kFirstArgument});
  const autograd::NoGrad no_grad;
  const device::Recorder recorder(run.device());
  run.forward(0);
  EXPECT_EQ(run.device().host_memory().stats().peak_bytes, 0);
  for (const test::Issued& item : test::issued(recorder.recording())) EXPECT_EQ(item.stream, "compute") << item.name;
}

// "name subject" of every copy.
std::vector<std::string> copies(const device::Recording& recording) {
  std::vector<std::string> found;
  for (const test::Issued& item : test::issued(recording)) {
    if (item.cost.unit != device::Unit::kHostLink) continue;
    EXPECT_EQ(item.stream, item.cost.work == device::WorkKind::kD2H ? "d2h" : "h2d");
    EXPECT_EQ(item.cost.read_bytes, kTensorBytes);
    found.push_back(item.name + " " + item.subject);
  }
  return found;
}

TEST(SwappedInputs, GoInOrderAndComeBackInReverse) {
  for (const Kind kind : kKinds) {
    Chain run({.blocks = 4, .kind = kind, .what = SwapWhat::kFirstArgument});
    const device::Recorder recorder(run.device());
    autograd::backward(run.forward(0));
    EXPECT_THAT(copies(recorder.recording()),
                ElementsAre("swap_d2h layers.0", "swap_d2h layers.1", "swap_d2h layers.2", "swap_h2d layers.2",
                            "swap_h2d layers.1", "swap_h2d layers.0"));
  }
}

// A plain block saves its input and its result; the result is the next block's input, and is known to both.
TEST(SavedTensors, OfABlockAllLeaveOnceEach) {
  Chain run({.blocks = 3, .what = SwapWhat::kSavedInside});
  const device::Recorder recorder(run.device());
  autograd::backward(run.forward(0));
  EXPECT_THAT(copies(recorder.recording()),
              ElementsAre("swap_d2h layers.0", "swap_d2h layers.0", "swap_d2h layers.1", "swap_d2h layers.1",
                          "swap_h2d layers.1", "swap_h2d layers.1", "swap_h2d layers.0", "swap_h2d layers.0"));
}

TEST(TwoForwards, BeforeOneBackwardKeepTheirTensorsApart) {
  const auto both = [](const Scene& scene) {
    Chain run(scene);
    const Tensor one = run.forward(0), other = run.forward(1);
    if (scene.what) {
      EXPECT_EQ(run.host_bytes(), 2 * 4 * kTensorBytes);
    }
    autograd::backward(ops::add(one, other));
    std::vector<double> values{one.item(), other.item()};
    for (const auto& [path, gradient] : test::gradients(run.chain())) {
      values.insert(values.end(), gradient.begin(), gradient.end());
    }
    return values;
  };
  for (const Kind kind : kKinds) {
    const Scene scene{.kind = kind};
    EXPECT_TRUE(same_bits(both(with(scene, SwapWhat::kFirstArgument)), both(scene)));
  }
}

// The chain itself is recomputed, with blocks that swap inside it.
TEST(ACheckpointedParent, MayHaveSwappedBlocks) {
  for (const bool reentrant : {true, false}) {
    const auto values = [&](bool swap) {
      test::OneRank rank;
      const auto chain = test::whole_chain(kWidth, 3);
      if (swap) swap_activations(blocks_of(*chain, SwapWhat::kFirstArgument), {});
      recompute::checkpoint(*chain, {.path = "chain", .use_reentrant = reentrant});
      const Tensor x = test::toy_input(0, kRows, kWidth);
      x.set_requires_grad(true);
      autograd::backward(ops::mean((*chain)(x)));
      std::vector<double> values = x.grad().to_vector<double>();
      for (const auto& [path, gradient] : test::gradients(*chain)) {
        values.insert(values.end(), gradient.begin(), gradient.end());
      }
      return values;
    };
    EXPECT_TRUE(same_bits(values(true), values(false)));
  }
}

// linear(norm(x)), of which the norm's result is dropped and computed again.
class Dropping final : public nn::Module {
 public:
  Dropping()
      : norm(register_module("norm", std::make_shared<nn::RMSNorm>(kWidth, 1e-6))),
        linear(register_module("linear", std::make_shared<nn::Linear>(kWidth, kWidth, false, 0.5))) {}
  std::string_view type_name() const override { return "Dropping"; }
  nn::Child<nn::RMSNorm> norm;
  nn::Child<nn::Linear> linear;

 protected:
  nn::Value forward(const nn::Args& args) override {
    std::optional<SavingInside> argument_of(std::in_place, *norm);
    return recompute::run_discarding(
        "dropping", [this](const nn::Args& again) { return norm(again.tensor(0)); }, args,
        [&](const Tensor& output) {
          argument_of.reset();
          return linear(output);
        });
  }
};

// Of what is recomputed, the argument leaves alone: nothing else is kept.
TEST(SavedTensors, OfModulesThatRunAgainAreNotSwapped) {
  std::vector<std::string> copied;
  const auto gradients = [&](bool swap) {
    test::OneRank rank;
    std::vector<std::shared_ptr<Dropping>> chain(3);
    std::vector<SwapBlock> blocks;
    for (std::size_t i = 0; i < chain.size(); ++i) {
      chain[i] = std::make_shared<Dropping>();
      nn::materialize(*chain[i]);
      nn::init_weights(*chain[i], i);
      blocks.push_back(
          {.path = std::to_string(i), .module = chain[i].get(), .inside = {&*chain[i]->norm, &*chain[i]->linear}});
    }
    if (swap) swap_activations(blocks, {.what = SwapWhat::kSavedInside});
    const device::Recorder recorder(rank.device());
    nn::Value x = test::toy_input(0, kRows, kWidth);
    for (const auto& block : chain) x = (*block)(x.tensor());
    autograd::backward(ops::mean(x));
    if (swap) copied = copies(recorder.recording());
    std::vector<double> values;
    for (const auto& block : chain) {
      for (const auto& [path, gradient] : test::gradients(*block)) {
        values.insert(values.end(), gradient.begin(), gradient.end());
      }
    }
    return values;
  };
  EXPECT_TRUE(same_bits(gradients(true), gradients(false)));
  EXPECT_THAT(copied, ElementsAre("swap_d2h 0", "swap_d2h 1", "swap_h2d 1", "swap_h2d 0"));
}

// --- What stays

// x * table * weight, in blocks that share the table.
class Scaled final : public nn::Module {
 public:
  Scaled() : weight(register_parameter("weight", {kRows, kWidth}, nn::Init::normal(1))) {}
  std::string_view type_name() const override { return "Scaled"; }
  nn::ParamSlot& weight;

 protected:
  nn::Value forward(const nn::Args& args) override {
    return ops::mul(ops::mul(args.tensor(0), args.tensor(1)), weight.value);
  }
};

// Two blocks whose first one is swapped, whatever it saves.
struct TwoScaled {
  TwoScaled() {
    for (Scaled* block : {&first, &second}) {
      nn::materialize(*block);
      nn::init_weights(*block, 3);
    }
    swap_activations(std::vector<SwapBlock>{{.path = "first", .module = &first, .inside = {&first}},
                                            {.path = "second", .module = &second, .inside = {&second}}},
                     {.what = SwapWhat::kSavedInside});
  }
  Scaled first, second;
};

TEST(SavedTensors, ThatAreParametersOrSharedArgumentsStay) {
  test::OneRank rank;
  TwoScaled blocks;
  const Tensor x = test::toy_input(0, kRows, kWidth), table = test::toy_input(1, kRows, kWidth);
  x.set_requires_grad(true);
  const device::Recorder recorder(rank.device());
  const Tensor y = blocks.second(blocks.first(x, table), table);
  // Of table, x * table and weight: the second.
  EXPECT_THAT(copies(recorder.recording()), ElementsAre("swap_d2h first"));
  autograd::backward(ops::mean(y));
  EXPECT_TRUE(blocks.first.weight.value.grad().defined());
}

TEST(ATensor, ThatIsHeldElsewhereKeepsItsBytes) {
  test::OneRank rank;
  const auto chain = test::whole_chain(kWidth, 2);
  swap_activations(blocks_of(*chain, SwapWhat::kFirstArgument), {});
  const Tensor x = test::toy_input(0, kRows, kWidth);
  const Tensor y = chain->layers[1](chain->layers[0](x));
  EXPECT_EQ(rank.device().host_memory().stats().total_bytes, kTensorBytes);
  EXPECT_EQ(x.to_vector<float>(), test::toy_input(0, kRows, kWidth).to_vector<float>());
}

// --- Pinning and refusals

class Watched final : public device::HostAllocator {
 public:
  explicit Watched(std::size_t most) : most_(most) {}
  std::shared_ptr<std::byte> allocate(std::size_t bytes, bool pinned) override {
    pins.push_back(pinned);
    if (pins.size() * bytes > most_) raise<DeviceError>("the system has no {} bytes more", bytes);
    return memory_->allocate(bytes, pinned);
  }
  std::vector<bool> pins;

 private:
  const std::size_t most_;
  const std::shared_ptr<HostAllocator> memory_ = HostAllocator::ordinary();
};

TEST(HostMemoryOfSwap, IsPinnedIffAsked) {
  for (const bool pin : {false, true}) {
    const auto allocator = std::make_shared<Watched>(1 << 20);
    Chain run({.blocks = 3, .what = SwapWhat::kFirstArgument, .pin_memory = pin, .allocator = allocator});
    run.forward(0);
    EXPECT_THAT(allocator->pins, ElementsAre(pin, pin));
  }
}

TEST(HostMemoryOfSwap, ThatIsNotThereIsAnErrorWithBytesAndANextStep) {
  Chain run({.blocks = 4, .what = SwapWhat::kFirstArgument, .allocator = std::make_shared<Watched>(2 * kTensorBytes)});
  EXPECT_EQ(test::message_of<DeviceError>([&] { run.forward(0); }),
            "[rank 0] swap of 'layers.2': no host memory for 512 bytes beside the 1024 bytes that this rank has there; "
            "swap fewer modules, or recompute them: [rank 0] the system has no 512 bytes more");
}

TEST(SwapRefuses, AContainerAndASecondTime) {
  test::OneRank rank;
  const auto chain = test::whole_chain(kWidth, 2);
  EXPECT_EQ(test::message_of<ConfigError>(
                [&] { swap_activations(std::vector<SwapBlock>{{.path = "layers", .module = &chain->layers}}, {}); }),
            "swap of 'layers': a ModuleList has no forward of its own; name its items: 'layers.{*}'");
  const auto blocks = blocks_of(*chain, SwapWhat::kFirstArgument);
  EXPECT_FALSE(is_swapped(chain->layers[0]));
  swap_activations(blocks, {});
  EXPECT_TRUE(is_swapped(chain->layers[0]));
  EXPECT_EQ(test::message_of<ConfigError>([&] { swap_activations(blocks, {}); }),
            "swap of 'layers.0' was requested twice; each module can be swapped once");
}

TEST(SwapRefuses, ABlockThatIsCalledWithoutATensorInFront) {
  test::OneRank rank;
  const auto chain = test::whole_chain(kWidth, 2);
  swap_activations(blocks_of(*chain, SwapWhat::kFirstArgument), {});
  EXPECT_EQ(
      test::message_of<ModelError>([&] { chain->layers[0](std::int64_t{3}); }),
      "[rank 0] in the forward of ToyBlock: swap of 'layers.0' takes its first argument, and it was called without a "
      "tensor in front; list modules "
      "that are called with their hidden state first");
}

TEST(SwapRefuses, ATensorThatWasWrittenToInBetween) {
  test::OneRank rank;
  const auto chain = test::whole_chain(kWidth, 2);
  swap_activations(blocks_of(*chain, SwapWhat::kFirstArgument), {});
  const Tensor x = test::toy_input(0, kRows, kWidth);
  const Tensor hidden = chain->layers[0](x);
  x.fill(1);
  const std::string text = test::message_of<ModelError>([&] { chain->layers[1](hidden); });
  EXPECT_THAT(text, ::testing::HasSubstr("was saved for backward in 'layers.0', which is swapped, at version"));
  EXPECT_THAT(text, ::testing::HasSubstr("it was written to in between; write to a copy"));
}

// --- Numbers of tensors

TEST(AWatch, NumbersWhatMayLeaveTheSameInEveryCall) {
  test::OneRank rank;
  const auto chain = test::whole_chain(kWidth, 2);
  const auto watch = std::make_shared<SwapWatch>();
  std::vector<SwapBlock> blocks = blocks_of(*chain, SwapWhat::kChosen);
  for (SwapBlock& block : blocks) block.ordinals.clear();
  swap_activations(blocks, {.what = SwapWhat::kChosen, .watch = watch});
  const device::Recorder recorder(rank.device());
  for (int index : {0, 1}) {
    autograd::backward(ops::mean((*chain)(test::toy_input(index, kRows, kWidth))));
  }
  std::vector<std::string> seen;
  for (const SeenTensor& tensor : watch->seen) {
    seen.push_back(
        fmt::format("{} {} {}{}", tensor.block, tensor.ordinal, tensor.bytes, tensor.last_block ? " last" : ""));
    EXPECT_GE(tensor.wanted, tensor.saved);
  }
  EXPECT_THAT(seen, ElementsAre("layers.0 0 512", "layers.0 1 512", "layers.1 0 512 last", "layers.1 1 512 last",
                                "layers.0 0 512", "layers.0 1 512", "layers.1 0 512 last", "layers.1 1 512 last"));
  EXPECT_THAT(copies(recorder.recording()), IsEmpty());
}

}  // namespace
}  // namespace loom::offload
