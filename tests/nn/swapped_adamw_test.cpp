// Promise: AdamW whose moments are swapped through the device is AdamW bit for bit, in memory and in an order that the
//          header says; its state goes to AdamW and comes from it.
// World:   one rank; parameters a [300000], b [7,33], c [0,3] (an empty shard) and d [400001], of which b has no
//          gradient in every second step. On a device of 48 MiB a tenth of what is unused holds the moments of a or d.
#include "engine/nn/optim/swapped_adamw.h"

#include <cstring>
#include <gmock/gmock.h>

#include "engine/core/error.h"
#include "engine/core/parallel.h"
#include "engine/device/recorder.h"
#include "engine/nn/optim/adamw.h"
#include "tests/support/files.h"
#include "tests/support/issued.h"
#include "tests/tensor/tensors.h"

namespace loom::nn {
namespace {

using ::testing::ElementsAre;

constexpr AdamWOptions kOptions{.lr = 0.05, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-6, .weight_decay = 0.1};
const std::vector<Shape> kShapes{{300000}, {7, 33}, {0, 3}, {400001}};
const char* const kPaths[] = {"a", "b", "c", "d"};

// Normal numbers with a period: millions of them are as good as a few.
test::Doubles numbers(std::int64_t count, std::uint64_t seed) {
  constexpr std::int64_t kPeriod = 997;
  const test::Doubles period = test::normals(std::min(count, kPeriod), seed);
  test::Doubles all(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = period[i % period.size()];
  return all;
}

// The first two decay.
ParameterGroups parameters(DType dtype) {
  ParameterGroups groups(2);
  groups[1].weight_decay = 0;
  for (std::size_t i = 0; i < kShapes.size(); ++i) {
    const Tensor value = test::leaf(numbers(kShapes[i].numel(), i), kShapes[i], dtype);
    groups[i / 2].parameters.push_back({kPaths[i], value, ShardSpec::whole(kShapes[i])});
  }
  return groups;
}

void give_gradients(Optimizer& optimizer, int step, DType dtype) {
  std::uint64_t seed = 100 * static_cast<std::uint64_t>(step);
  for (const ParameterGroup& group : optimizer.groups()) {
    for (const OptimizedParameter& parameter : group.parameters) {
      if (parameter.path == "b" && step % 2 == 1) continue;
      const Shape& shape = parameter.value.shape();
      parameter.value.set_grad(test::constant(numbers(shape.numel(), ++seed), shape, dtype));
    }
  }
}

void train(Optimizer& optimizer, int from, int to, DType grad_dtype) {
  for (int step = from; step < to; ++step) {
    give_gradients(optimizer, step, grad_dtype);
    optimizer.step();
    optimizer.zero_grad();
  }
}

std::vector<std::byte> bits_of(const Tensor& tensor) {
  const auto* bytes = static_cast<const std::byte*>(tensor.raw());
  return {bytes, bytes + tensor.nbytes()};
}

// Weights, moments and step counts.
std::vector<std::vector<std::byte>> bits_of(const Optimizer& optimizer) {
  std::vector<std::vector<std::byte>> bits;
  for (const Tensor& value : optimizer.parameters()) bits.push_back(bits_of(value));
  for (const auto& [path, state] : optimizer.state_dict().parameters) {
    bits.push_back(bits_of(std::get<LocalTensor>(state.at("exp_avg")).value));
    bits.push_back(bits_of(std::get<LocalTensor>(state.at("exp_avg_sq")).value));
    bits.emplace_back(static_cast<std::size_t>(std::get<double>(state.at("step"))));
  }
  return bits;
}

struct Case {
  MomentSwap swap;
  DType dtype = DType::kF32;
  DType grad_dtype = DType::kF32;
  device::ExecutorKind executor = device::ExecutorKind::kInline;
  int compute_threads = 1;
};

class Swapped : public ::testing::TestWithParam<Case> {};

TEST_P(Swapped, HasTheBitsOfAdamW) {
  const Case& c = GetParam();
  try {
    ComputePool().resize(c.compute_threads);
  } catch (const ConfigError&) {
    GTEST_SKIP() << "this build has serial loops";
  }
  test::OneRank rank({.profile = {.memory_bytes = 48 << 20}, .executor = c.executor}, c.compute_threads);
  AdamW plain(parameters(c.dtype), kOptions);
  train(plain, 0, 4, c.grad_dtype);
  SwappedAdamW swapped(parameters(c.dtype), kOptions, c.swap);
  train(swapped, 0, 4, c.grad_dtype);
  EXPECT_EQ(bits_of(swapped), bits_of(plain));
}

INSTANTIATE_TEST_SUITE_P(
    Everywhere, Swapped,
    ::testing::Values(Case{BatchesByMemory{0.1}}, Case{BatchesByMemory{0.9}}, Case{SlicesByCount{1}},
                      Case{SlicesByCount{16}}, Case{SlicesByCount{333}},
                      Case{SlicesByCount{7}, DType::kF32, DType::kBF16},
                      Case{SlicesByCount{7}, DType::kF64, DType::kF64},
                      Case{BatchesByMemory{0.9}, DType::kF32, DType::kBF16},
                      Case{BatchesByMemory{0.1}, DType::kF32, DType::kF32, device::ExecutorKind::kThreaded},
                      Case{SlicesByCount{16}, DType::kF32, DType::kF32, device::ExecutorKind::kThreaded, 2}));

TEST(SwappedAdamW, CutsBatchesByTheDevicesUnusedMemory) {
  test::OneRank rank({.profile = {.memory_bytes = 256 << 20}});
  constexpr std::int64_t kElems = 1 << 20;
  const auto copies_before_first_update = [&](double fraction) {
    ParameterGroups groups(1);
    for (const char* path : {"x", "y", "z"}) {
      const Tensor value = test::leaf(numbers(kElems, 1), {kElems}, DType::kF32);
      value.set_grad(test::constant(numbers(kElems, 2), {kElems}, DType::kF32));
      groups[0].parameters.push_back({path, value, ShardSpec::whole({kElems})});
    }
    SwappedAdamW optimizer(std::move(groups), kOptions, BatchesByMemory{fraction});
    const device::Recorder recorder(rank.device());
    optimizer.step();
    int copies = 0;
    for (const test::Issued& entry : test::issued(recorder.recording())) {
      if (entry.name == "adamw") break;
      if (entry.name == "h2d") ++copies;
    }
    return copies;
  };
  // 24 MiB of parameters and gradients leave 232 MiB; two moments take 8.
  EXPECT_EQ(copies_before_first_update(0.05), 2);
  EXPECT_EQ(copies_before_first_update(0.1), 4);
  EXPECT_EQ(copies_before_first_update(0.9), 6);
}

std::vector<std::string> words(const device::Recording& recording) {
  std::vector<std::string> found;
  for (const test::Issued& entry : test::issued(recording)) {
    found.push_back(entry.subject.empty() ? entry.name : entry.name + " " + entry.subject);
  }
  return found;
}

ParameterGroups two_of_four() {
  ParameterGroups groups(1);
  for (const char* path : {"x", "y"}) {
    const Tensor value = test::leaf(numbers(4, 1), {4}, DType::kF32);
    value.set_grad(test::constant(numbers(4, 2), {4}, DType::kF32));
    groups[0].parameters.push_back({path, value, ShardSpec::whole({4})});
  }
  return groups;
}

TEST(SwappedAdamW, MovesABatchWholeAndASliceAhead) {
  test::OneRank rank;
  {
    SwappedAdamW optimizer(two_of_four(), kOptions, BatchesByMemory{});
    const device::Recorder recorder(rank.device());
    optimizer.step();
    EXPECT_THAT(words(recorder.recording()),
                ElementsAre("h2d x", "h2d x", "h2d y", "h2d y", "adamw", "d2h x", "d2h x", "adamw", "d2h y", "d2h y"));
  }
  SwappedAdamW optimizer(two_of_four(), kOptions, SlicesByCount{3});  // of 3, 3 and 2: x, x y, y
  const device::Recorder recorder(rank.device());
  optimizer.step();
  EXPECT_THAT(words(recorder.recording()),
              ElementsAre("h2d x", "h2d x", "h2d x", "h2d x", "h2d y", "h2d y",  // the first two slices
                          "adamw", "d2h x", "d2h x",                             //
                          "h2d y", "h2d y",                                      // the third, where the first was
                          "adamw", "d2h x", "d2h x", "adamw", "d2h y", "d2h y",  //
                          "adamw", "d2h y", "d2h y"));
}

TEST(SwappedAdamW, HoldsTwoSlicesOnTheDeviceAndNothingBetweenSteps) {
  constexpr auto kState = device::MemCategory::kOptimizerState;
  test::OneRank rank;
  ParameterGroups groups(1);
  const Tensor value = test::leaf(numbers(10240, 1), {10240}, DType::kF32);
  groups[0].parameters.push_back({"x", value, ShardSpec::whole({10240})});
  for (const int times : {1, 2, 8}) {
    SwappedAdamW optimizer(groups, kOptions, SlicesByCount{times});
    for (int step = 0; step < 2; ++step) {
      value.set_grad(test::constant(numbers(10240, 2), {10240}, DType::kF32));
      rank.device().memory().reset_peaks();
      optimizer.step();
    }
    EXPECT_EQ(rank.stats().peak_by_category[kState], std::min(times, 2) * 2 * (10240 / times) * 4) << times;
    EXPECT_EQ(rank.stats().by_category[kState], 0);
    EXPECT_EQ(rank.device().host_memory().stats().by_category[kState], 2 * 10240 * 4);
  }
  SwappedAdamW optimizer(groups, kOptions, BatchesByMemory{});
  rank.device().memory().reset_peaks();
  optimizer.step();
  EXPECT_EQ(rank.stats().peak_by_category[kState], 2 * 10240 * 4);
  EXPECT_EQ(rank.stats().by_category[kState], 0);
}

class AskedPins final : public device::HostAllocator {
 public:
  std::shared_ptr<std::byte> allocate(std::size_t bytes, bool pinned) override {
    asked.push_back(pinned);
    return ordinary()->allocate(bytes, pinned);
  }
  std::vector<bool> asked;
};

TEST(SwappedAdamW, AsksForPinnedMemory) {
  const auto allocator = std::make_shared<AskedPins>();
  test::OneRank rank({.host_allocator = allocator});
  SwappedAdamW optimizer(two_of_four(), kOptions, SlicesByCount{});
  optimizer.step();
  EXPECT_THAT(allocator->asked, ElementsAre(true, true, true, true));
}

TEST(SwappedAdamW, GoesOnFromAdamWAndAdamWFromIt) {
  test::OneRank rank;
  AdamW whole(parameters(DType::kF32), kOptions);
  train(whole, 0, 6, DType::kF32);
  const auto continued = [&](Optimizer& first, Optimizer& second) {
    train(first, 0, 3, DType::kF32);
    for (std::size_t i = 0; i < kShapes.size(); ++i) second.parameters()[i].copy_from(first.parameters()[i]);
    second.load_state_dict(host_copies(first.state_dict()));
    train(second, 3, 6, DType::kF32);
    EXPECT_EQ(bits_of(second), bits_of(whole));
  };
  for (const MomentSwap swap : {MomentSwap(BatchesByMemory{}), MomentSwap(SlicesByCount{5})}) {
    AdamW plain(parameters(DType::kF32), kOptions), plain_again(parameters(DType::kF32), kOptions);
    SwappedAdamW swapped(parameters(DType::kF32), kOptions, swap), swapped_again(parameters(DType::kF32), {}, swap);
    EXPECT_EQ(swapped.name(), plain.name());
    continued(plain, swapped_again);
    continued(swapped, plain_again);
  }
}

TEST(SwappedAdamW, RefusesAShareThatHoldsNoParameterBeforeItChangesAnything) {
  test::OneRank rank({.profile = {.memory_bytes = 64 << 20}});
  ParameterGroups groups = two_of_four();
  const Tensor large = test::leaf(numbers(1 << 20, 1), {1 << 20}, DType::kF32);
  large.set_grad(test::constant(numbers(1 << 20, 2), {1 << 20}, DType::kF32));
  groups[0].parameters.push_back({"layers.0.weight", large, ShardSpec::whole({1 << 20})});
  SwappedAdamW optimizer(std::move(groups), kOptions, BatchesByMemory{0.1});
  const auto before = bits_of(optimizer.parameters()[0]);
  const std::int64_t unused = (64 << 20) - rank.stats().allocator.allocated_bytes;
  EXPECT_EQ(test::message_of<ConfigError>([&] { optimizer.step(); }),
            fmt::format("adamw_swap: the two moments of parameter 'layers.0.weight' take 8388608 bytes, and "
                        "mem_fraction_static 0.1 of the {} bytes that the device has unused is {}; raise "
                        "--mem-fraction-static, or leave more of the device's memory unused",
                        unused, static_cast<std::int64_t>(0.1 * static_cast<double>(unused))));
  EXPECT_EQ(bits_of(optimizer.parameters()[0]), before);
  EXPECT_TRUE(optimizer.state_dict().parameters.empty());
}

TEST(SwappedAdamW, RefusesParametersOfTheHost) {
  test::OneRank rank;
  ParameterGroups groups(1);
  const Tensor value = Tensor::host({4}, DType::kF32);
  value.set_requires_grad(true);
  groups[0].parameters.push_back({"head.weight", value, ShardSpec::whole({4})});
  EXPECT_EQ(
      test::message_of<ConfigError>([&] { SwappedAdamW(std::move(groups), kOptions, SlicesByCount{}); }),
      "AdamW with swapped moments: parameter 'head.weight' is in host memory (offload_to_cpu), and its moments are "
      "there already; set offload_to_cpu: false, or use --optimizer adam without --swap-optimizer");
}

}  // namespace
}  // namespace loom::nn
