// Promise: with CPU offload shards, gradients and optimizer state are in host memory and everything computed is the
//          same, bit by bit; nothing reads a gradient before it has landed.
// World:   1, 2 or 4 ranks as threads; Net = Linear 6 -> 10 -> 9 with biases, each a group, then RMSNorm(9) and Linear
//          9 -> 5 in the root's group. Over 4 ranks rows are 3,3,3,1 / 3,3,3,0 / 2,2,1,0: padding and empty shards.
#include <atomic>
#include <chrono>
#include <future>
#include <gmock/gmock.h>
#include <mutex>
#include <numeric>
#include <thread>

#include "engine/core/error.h"
#include "engine/device/recorder.h"
#include "engine/launch/run_ranks.h"
#include "engine/nn/init.h"
#include "engine/nn/layers.h"
#include "engine/nn/optim/adamw.h"
#include "engine/nn/optim/landing.h"
#include "engine/tensor/autograd.h"
#include "engine/tensor/ops.h"
#include "sharding/full_parameters.h"
#include "sharding/fully_shard.h"
#include "sharding/memory.h"
#include "sharding/parallelize.h"
#include "sharding/streams.h"
#include "tests/support/files.h"
#include "tests/support/issued.h"

namespace loom::sharding {
namespace {

using device::ExecutorKind;
using device::MemCategory;
using device::StreamId;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;

class Net final : public nn::Module {
 public:
  explicit Net(std::int64_t width = 10)
      : first(register_module("first", std::make_shared<nn::Linear>(6, width, true, 0.3))),
        second(register_module("second", std::make_shared<nn::Linear>(width, 9, true, 0.3))),
        norm(register_module("norm", std::make_shared<nn::RMSNorm>(9, 1e-6))),
        head(register_module("head", std::make_shared<nn::Linear>(9, 5, false, 0.3))) {
    register_buffer("shift", Tensor::full({9}, DType::kF32, 0.5));
  }
  std::string_view type_name() const override { return "Net"; }

  nn::Linear& first;
  nn::Linear& second;
  nn::RMSNorm& norm;
  nn::Linear& head;

 protected:
  nn::Value forward(const nn::Args& args) override {
    const Tensor hidden = second(ops::tanh(first(args.tensor(0))));
    const Tensor& shift = own_buffers().front().value;
    return head(norm(ops::add(hidden, ops::cast(shift, hidden.dtype()))));
  }
};

struct World {
  int ranks = 1;
  int shard = 1;
};

struct Scene {
  World world{};
  ExecutorKind executor = ExecutorKind::kInline;
  FullyShardOptions options{};  // without the axes
  std::shared_ptr<device::HostAllocator> allocator{};
  bool one_group = false;  // the root's only
  bool dry_run = false;
  std::int64_t width = 10;
};

Scene with(Scene scene, std::optional<CpuOffloadPolicy> offload) {
  scene.options.cpu_offload = offload;
  return scene;
}

constexpr CpuOffloadPolicy kPageable{.pin_memory = false};
constexpr CpuOffloadPolicy kPinned{.pin_memory = true};
constexpr CpuOffloadPolicy kAsTheyLand{.pin_memory = true, .wait_in_backward = false};

// A rank that trains a Net.
class Rank {
 public:
  Rank(const Scene& scene, RankContext& context, comm::World& world) : options_(scene.options) {
    device::DeviceOptions device;
    device.executor = scene.executor;
    device.dry_run = scene.dry_run;
    device.host_allocator = scene.allocator;
    device_ = &device::Device::install(context, device);
    net_ = std::make_shared<Net>(scene.width);
    options_.axes = FsdpAxes::over(world, scene.world.shard);
    if (!scene.one_group) {
      fully_shard(net_->first, options_);
      fully_shard(net_->second, options_);
    }
    fully_shard(*net_, options_);
    materialize_shards(*net_);
    nn::init_weights(*net_, 7);
    optimizer_ = std::make_unique<nn::AdamW>(net_->parameters(), nn::AdamWOptions{.lr = 0.05});
  }

  // The loss over `rows` rows that depend on the rank and `index`.
  Tensor forward(int index, std::int64_t rows = 4) {
    std::vector<float> x(static_cast<std::size_t>(6 * rows));
    std::vector<std::int32_t> y(static_cast<std::size_t>(rows));
    const int seed = 100 * index + RankContext::current().rank();
    for (std::size_t i = 0; i < x.size(); ++i)
      x[i] = static_cast<float>((static_cast<int>(i) * 37 + seed * 11) % 23) / 11.5f - 1.0f;
    for (std::size_t i = 0; i < y.size(); ++i) y[i] = (static_cast<int>(i) + seed) % 5;
    return ops::cross_entropy((*net_)(Tensor::from(x, {rows, 6})), Tensor::from(y, {rows}));
  }
  double micro_batch(int index) {
    const Tensor loss = forward(index);
    const double value = loss.item();
    autograd::backward(loss);
    return value;
  }

  // Two micro-batches, the same in every step.
  double step() {
    const double loss = micro_batch(0) + micro_batch(1);
    norms.push_back(clip_grad_norm(*net_, 0.5));
    update();
    return loss;
  }
  void update() {
    optimizer_->step();
    optimizer_->zero_grad();
  }

  Net& net() { return *net_; }
  nn::AdamW& optimizer() { return *optimizer_; }
  device::Device& device() { return *device_; }
  std::int64_t host_bytes(MemCategory category) { return device_->host_memory().stats().by_category[category]; }
  std::int64_t device_bytes(MemCategory category) { return device_->memory().stats().by_category[category]; }

  std::vector<double> norms;

 private:
  FullyShardOptions options_;
  device::Device* device_ = nullptr;
  std::shared_ptr<Net> net_;
  std::unique_ptr<nn::AdamW> optimizer_;
};

// Runs `main` on every rank.
void on_ranks(const Scene& scene, const std::function<void(Rank&)>& main) {
  launch::run_ranks(scene.world.ranks, {std::chrono::seconds(60)}, [&](RankContext& context, comm::World& world) {
    Rank rank(scene, context, world);
    main(rank);
  });
}

bool is_first() { return RankContext::current().rank() == 0; }

struct Trained {
  std::vector<double> losses;
  std::vector<double> norms;
  std::vector<std::vector<float>> weights;
  bool operator==(const Trained&) const = default;
};

// Three steps of two micro-batches: the second one accumulates. What rank 0 sees.
Trained trained(const Scene& scene) {
  Trained result;
  on_ranks(scene, [&](Rank& rank) {
    Trained own;
    for (int step = 0; step < 3; ++step) own.losses.push_back(rank.step());
    own.norms = rank.norms;  // before clipping
    for_each_full_parameter(
        rank.net(), [&](const std::string&, const Tensor& full) { own.weights.push_back(full.to_vector<float>()); });
    if (is_first()) result = std::move(own);
  });
  return result;
}

using Variant = std::tuple<World, GatherLayout, std::optional<DType>, ExecutorKind>;

class Offload : public ::testing::TestWithParam<Variant> {};

TEST_P(Offload, GivesTheSameBitsAsTheDevice) {
  const auto& [world, layout, param_dtype, executor] = GetParam();
  Scene scene{.world = world, .executor = executor};
  scene.options.layout = layout;
  scene.options.policy.param_dtype = param_dtype;
  if (param_dtype) scene.options.policy.reduce_dtype = DType::kF32;
  const Trained on_device = trained(scene);
  EXPECT_LT(on_device.losses.back(), on_device.losses.front());
  EXPECT_EQ(trained(with(scene, kPageable)), on_device);
  EXPECT_EQ(trained(with(scene, kPinned)), on_device);
  EXPECT_EQ(trained(with(scene, kAsTheyLand)), on_device);
}

INSTANTIATE_TEST_SUITE_P(Everywhere, Offload,
                         ::testing::Combine(::testing::Values(World{1, 1}, World{2, 2}, World{4, 4}, World{4, 2}),
                                            ::testing::Values(GatherLayout::kBuffered, GatherLayout::kFast),
                                            ::testing::Values(std::optional<DType>{}, std::optional(DType::kBF16)),
                                            ::testing::Values(ExecutorKind::kInline, ExecutorKind::kThreaded)));

TEST(OffloadedPostForwardShards, GiveTheSameBitsAsTheDevice) {
  Scene scene{.world = {4, 4}};
  scene.options.reshard_after_forward = 2;
  const Trained on_device = trained(scene);
  EXPECT_EQ(trained(with(scene, kPinned)), on_device);
}

// --- Where things are

class CountingAllocator final : public device::HostAllocator {
 public:
  std::shared_ptr<std::byte> allocate(std::size_t bytes, bool pinned) override {
    {
      const std::lock_guard lock(mutex_);
      pins_.push_back(pinned);
    }
    return memory_->allocate(bytes, pinned);
  }
  std::vector<bool> pins() {
    const std::lock_guard lock(mutex_);
    return pins_;
  }

 private:
  const std::shared_ptr<device::HostAllocator> memory_ = HostAllocator::ordinary();
  std::mutex mutex_;
  std::vector<bool> pins_;
};

// Rows of 4 bytes a parameter: 6 x 10 + 10, 10 x 9 + 9, 9 + 9 x 5. Rank 0 of 4 owns full chunks, so nothing of its
// shards is padding.
constexpr std::int64_t kShardBytes = 4 * (3 * 6 + 3 + 3 * 10 + 3 + 3 + 2 * 9);

// Of the rank's own rows, without padding.
std::int64_t own_bytes(Rank& rank) {
  std::int64_t bytes = 0;
  for (const Tensor& parameter : rank.net().parameters()) bytes += parameter.nbytes();
  return bytes;
}

TEST(OffloadedTensors, AreInHostMemoryByPurposeAndNotOnTheDevice) {
  on_ranks(with({.world = {4, 4}}, kPageable), [](Rank& rank) {
    EXPECT_EQ(rank.host_bytes(kShard), kShardBytes);  // padded: the same on every rank
    EXPECT_EQ(rank.device_bytes(kShard), 0);
    rank.micro_batch(0);
    EXPECT_EQ(rank.device_bytes(MemCategory::kGradient), 0);
    EXPECT_EQ(rank.host_bytes(MemCategory::kGradient), is_first() ? kShardBytes : own_bytes(rank));
    rank.optimizer().step();
    EXPECT_EQ(rank.device_bytes(MemCategory::kOptimizerState), 0);
    EXPECT_EQ(rank.host_bytes(MemCategory::kOptimizerState), 2 * (is_first() ? kShardBytes : own_bytes(rank)));
    rank.optimizer().zero_grad();
    EXPECT_EQ(rank.host_bytes(MemCategory::kGradient), 0);
  });
}

TEST(OffloadedTensors, ArePinnedIffAsked) {
  for (const bool pin : {false, true}) {
    const auto allocator = std::make_shared<CountingAllocator>();
    on_ranks(with({.world = {2, 2}, .allocator = allocator}, CpuOffloadPolicy{pin}), [](Rank& rank) { rank.step(); });
    EXPECT_THAT(allocator->pins(), Each(pin));
    EXPECT_GE(allocator->pins().size(), 2u * 6u * (1 + 2 + 2));  // ranks, parameters: shard, two gradients, two moments
  }
}

TEST(OffloadedTensors, AreUnknownToATrainingOnTheDevice) {
  const auto allocator = std::make_shared<CountingAllocator>();
  on_ranks({.world = {2, 2}, .allocator = allocator}, [](Rank& rank) { rank.step(); });
  EXPECT_THAT(allocator->pins(), IsEmpty());
}

TEST(OffloadedTensors, LeaveBuffersAndIgnoredParametersOnTheDevice) {
  launch::run_ranks(2, {std::chrono::seconds(60)}, [](RankContext& context, comm::World& world) {
    device::Device::install(context, {});
    Net net;
    nn::ParamSlot& ignored = net.norm.weight;
    ignored.value = Tensor::full({9}, DType::kF32, 1.0);
    ignored.value.set_requires_grad(true);
    FullyShardOptions options;
    options.axes = FsdpAxes::over(world, 2);
    options.cpu_offload = kPinned;
    options.ignored_params = {ignored.value.id()};
    fully_shard(net, options);
    materialize_shards(net);
    nn::init_weights(net, 7);
    const Tensor x = Tensor::full({2, 6}, DType::kF32, 0.25);
    autograd::backward(ops::mean(net(x)));
    EXPECT_EQ(net.own_buffers().front().value.storage()->place(), Place::kDevice);
    EXPECT_EQ(ignored.value.storage()->place(), Place::kDevice);
    EXPECT_EQ(ignored.value.grad().storage()->place(), Place::kDevice);
    EXPECT_EQ(net.head.weight.value.storage()->place(), Place::kHost);
    EXPECT_EQ(net.head.weight.value.grad().storage()->place(), Place::kHost);
    EXPECT_EQ(net.head.weight.value.shape(), (Shape{context.rank() == 0 ? 3 : 2, 9}));
  });
}

TEST(OffloadedTensors, OfTheDeviceAtTheFirstForwardAreAnError) {
  std::string text;
  on_ranks(with({}, kPageable), [&](Rank& rank) {
    rank.net().second.weight.value = Tensor::empty({9, 10}, DType::kF32);
    text = test::message_of<ConfigError>([&] { rank.micro_batch(0); });
  });
  EXPECT_EQ(text,
            "parameter 'weight' of group 'second' is on the device, but offload_to_cpu keeps its shard on the host; "
            "keep the tensor "
            "that fully_shard() put there and give it memory with materialize_shards()");
}

struct Peaks {
  std::int64_t forward_bytes = 0;
  std::int64_t backward_bytes = 0;
};

// Of the device in a second micro-batch: optimizer state and gradients are there already.
Peaks second_micro_batch(const Scene& scene) {
  Peaks peaks;
  on_ranks(scene, [&](Rank& rank) {
    rank.step();
    rank.micro_batch(0);
    device::DeviceMemory& memory = rank.device().memory();
    memory.reset_peaks();
    const Tensor loss = rank.forward(1, 256);
    const std::int64_t forward_bytes = memory.stats().peak_bytes;
    memory.reset_peaks();
    autograd::backward(loss);
    if (is_first()) peaks = {forward_bytes, memory.stats().peak_bytes};
  });
  return peaks;
}

std::int64_t blocks_of_512(std::initializer_list<std::int64_t> bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0},
                         [](std::int64_t sum, std::int64_t b) { return sum + (b + 511) / 512 * 512; });
}

TEST(OffloadedTensors, LowerTheDevicesPeakByShardsGradientsAndOptimizerState) {
  for (const GatherLayout layout : {GatherLayout::kBuffered, GatherLayout::kFast}) {
    Scene scene{.world = {2, 2}, .width = 64};
    scene.options.layout = layout;
    const Peaks on_device = second_micro_batch(scene);
    const Peaks offloaded = second_micro_batch(with(scene, kPinned));
    // Of rank 0, in bytes: first 32 x 6 + 32, second 5 x 64 + 5, norm 5, head 5 / 2 -> 3 x 9. Gradients are one block a
    // group.
    const std::int64_t shards = blocks_of_512({32 * 6 * 4, 32 * 4, 5 * 64 * 4, 5 * 4, 5 * 4, 3 * 9 * 4});
    const std::int64_t gradients = blocks_of_512({(32 * 6 + 32) * 4, (5 * 64 + 5) * 4, (5 + 3 * 9) * 4});
    EXPECT_EQ(on_device.forward_bytes - offloaded.forward_bytes, shards + gradients + 2 * shards);
    // A reduced row that is added to gradients is free when its reduction is issued, as in PyTorch: on the device it is
    // no part of the peak, which is in the backward of the group after it.
    EXPECT_EQ(on_device.backward_bytes - offloaded.backward_bytes, shards + gradients + 2 * shards);
  }
}

// --- The order of events

// The items of the copy-in stream and of those after it, as "stream name:subject", while `work` runs.
std::vector<std::string> items(Rank& rank, const std::function<void()>& work, std::string_view subject_part = "") {
  const device::Recorder recorder(rank.device());
  work();
  std::vector<std::string> found;
  for (const test::Issued& entry : test::issued(recorder.recording())) {
    if (entry.is_mark() || entry.stream == "compute" || entry.name == "end_of_backward") continue;
    if (entry.subject.find(subject_part) == std::string::npos) continue;
    found.push_back(entry.stream + " " + entry.name + ":" + entry.subject);
  }
  return found;
}

// The groups' parameters call themselves "weight" and "bias".
TEST(OffloadedGather, CopiesFullPrecisionParameterByParameterAndThenCasts) {
  Scene scene = with({.world = {2, 2}}, kPinned);
  scene.options.policy.param_dtype = DType::kBF16;
  for (const GatherLayout layout : {GatherLayout::kBuffered, GatherLayout::kFast}) {
    scene.options.layout = layout;
    on_ranks(scene, [](Rank& rank) {
      FsdpState::of(rank.net())->lazy_init();
      const device::Recorder recorder(rank.device());
      EXPECT_THAT(
          items(rank, [&] { unshard(rank.net().first); }),
          ElementsAre("gather_copy_in h2d:weight", "gather_copy_in cast:weight", "gather_copy_in h2d:bias",
                      "gather_copy_in cast:bias", "gather_copy_in gather_copy_in:first", "gather all_gather:first"));
      const std::vector<test::Issued> entries = test::issued(recorder.recording());
      EXPECT_EQ(entries[0].cost.read_bytes, 5 * 6 * 4);     // the shard's own dtype over the wire
      EXPECT_EQ(entries[1].cost.written_bytes, 5 * 6 * 2);  // cast on the device
    });
  }
}

TEST(OffloadedGather, NeedsNoCastWhereTheDtypesAgree) {
  on_ranks(with({.world = {2, 2}}, kPinned), [](Rank& rank) {
    FsdpState::of(rank.net())->lazy_init();
    EXPECT_THAT(items(rank, [&] { unshard(rank.net().first); }),
                ElementsAre("gather_copy_in h2d:weight", "gather_copy_in h2d:bias",
                            "gather_copy_in gather_copy_in:first", "gather all_gather:first"));
  });
}

// In fp32 the buffered layout keeps the group's inputs (as PyTorch), the other layouts copy to the place. In bf16 the
// first keep the group's cast inputs and one fp32 shard, the second one fp32 shard. Nothing of it stays. first: weight
// 5 x 6, bias 5.
TEST(OffloadedGather, NeedsTheDeviceBytesItSays) {
  struct Case {
    GatherLayout layout;
    std::optional<DType> dtype;
    std::int64_t peak_bytes;
    std::int64_t bytes_after;
  };
  const std::int64_t fp32_inputs = blocks_of_512({5 * 6 * 4, 5 * 4});
  const std::int64_t bf16_inputs = blocks_of_512({5 * 6 * 2, 5 * 2});
  const std::int64_t one_shard = blocks_of_512({5 * 6 * 4});
  const std::int64_t buffer = blocks_of_512({2 * (5 * 6 + 5) * 4});
  for (const Case& c :
       {Case{GatherLayout::kBuffered, {}, fp32_inputs + buffer, buffer}, Case{GatherLayout::kFast, {}, 0, 0},
        Case{GatherLayout::kBuffered, DType::kBF16, std::max(bf16_inputs + one_shard, bf16_inputs + buffer), buffer},
        Case{GatherLayout::kFast, DType::kBF16, one_shard, 0}}) {
    Scene scene = with({.world = {2, 2}}, kPinned);
    scene.options.layout = c.layout;
    scene.options.policy.param_dtype = c.dtype;
    on_ranks(scene, [&](Rank& rank) {
      FsdpState::of(rank.net())->lazy_init();
      ParamGroup& group = *FsdpState::of(rank.net().first)->group();
      group.unshard();
      EXPECT_EQ(rank.device().memory().stats().peak_by_category[kGatherBuffer], c.peak_bytes);
      EXPECT_EQ(rank.device_bytes(kGatherBuffer), c.bytes_after);
      group.wait_for_unshard();
    });
  }
}

TEST(OffloadedReduction, CopiesToTheHostOnTheStreamOfTheLastCollective) {
  on_ranks(with({.world = {2, 2}}, kPinned), [](Rank& rank) {
    const auto found = items(rank, [&] { rank.micro_batch(0); });
    const auto reduction = std::find(found.begin(), found.end(), "reduce_scatter reduce_scatter:second");
    ASSERT_LE(reduction + 3, found.end());
    EXPECT_EQ(reduction[1], "reduce_scatter d2h:weight");
    EXPECT_EQ(reduction[2], "reduce_scatter d2h:bias");
  });
  on_ranks(with({.world = {4, 2}}, kPinned), [](Rank& rank) {
    const auto found = items(rank, [&] { rank.micro_batch(0); });
    const auto reduction = std::find(found.begin(), found.end(), "all_reduce all_reduce:second");
    ASSERT_LE(reduction + 3, found.end());
    EXPECT_EQ(reduction[1], "all_reduce d2h:weight");
    EXPECT_EQ(reduction[2], "all_reduce d2h:bias");
  });
}

TEST(OffloadedReduction, AddsOnTheCpuWhenGradientsAreThere) {
  on_ranks(with({.world = {2, 2}}, kPinned), [](Rank& rank) {
    EXPECT_THAT(items(rank, [&] { rank.micro_batch(0); }), Not(Contains("host grad_accumulate:")));
    const auto found = items(rank, [&] { rank.micro_batch(1); });
    EXPECT_EQ(std::count(found.begin(), found.end(), "host grad_accumulate:"), 6);
    EXPECT_THAT(items(rank, [&] { rank.update(); }),
                AllOf(Contains("host adamw:"), Each(::testing::StartsWith("host "))));
  });
}

// --- Landing. One group, one rank, threaded streams; an item that waits at a gate stands in the reduce-scatter stream
// before the reduction.

class Gate {
 public:
  explicit Gate(Rank& rank) {
    rank.device().stream(sharding::kReduceScatterStream).submit({"gate", "", {}, [open = opened_.get_future().share()] {
                                                                   open.wait();
                                                                 }});
  }
  void open() { opened_.set_value(); }
  // From another thread, a moment after this returns: whoever does not wait until then reads what is not there yet.
  std::jthread open_soon() {
    return std::jthread([this] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      open();
    });
  }

 private:
  std::promise<void> opened_;
};

Scene one_slow_reduction(CpuOffloadPolicy policy) {
  return with({.executor = ExecutorKind::kThreaded, .one_group = true}, policy);
}

std::vector<std::vector<float>> gradients(Rank& rank) {
  std::vector<std::vector<float>> values;
  for (const Tensor& parameter : rank.net().parameters()) values.push_back(parameter.grad().to_vector<float>());
  return values;
}

bool all_landed(Rank& rank) {
  const auto parameters = rank.net().parameters();
  return std::all_of(parameters.begin(), parameters.end(),
                     [](const Tensor& p) { return p.grad().storage()->is_ready(); });
}

std::vector<std::vector<float>> expected_gradients(int micro_batches) {
  std::vector<std::vector<float>> values;
  on_ranks({.one_group = true}, [&](Rank& rank) {
    for (int i = 0; i < micro_batches; ++i) rank.micro_batch(i);
    values = gradients(rank);
  });
  return values;
}

TEST(OffloadedGradients, InPinnedMemoryDoNotBlockTheHostUntilTheyAreRead) {
  on_ranks(one_slow_reduction(kPinned), [](Rank& rank) {
    FsdpState::of(rank.net())->is_last_backward = false;  // no final wait: the reader is on its own
    Gate gate(rank);
    rank.micro_batch(0);
    EXPECT_FALSE(all_landed(rank));
    const std::jthread opener = gate.open_soon();
    const auto read = gradients(rank);
    EXPECT_EQ(read, expected_gradients(1));
    EXPECT_TRUE(all_landed(rank));
  });
}

TEST(OffloadedGradients, AreNotReadByTheOptimizerBeforeTheyHaveLanded) {
  std::vector<std::vector<float>> expected;
  const auto weights = [](Rank& rank) {
    std::vector<std::vector<float>> values;
    for (const Tensor& parameter : rank.net().parameters()) values.push_back(parameter.to_vector<float>());
    return values;
  };
  on_ranks({.one_group = true}, [&](Rank& rank) {
    rank.micro_batch(0);
    rank.update();
    expected = weights(rank);
  });
  on_ranks(one_slow_reduction(kPinned), [&](Rank& rank) {
    FsdpState::of(rank.net())->is_last_backward = false;
    Gate gate(rank);
    rank.micro_batch(0);
    ASSERT_FALSE(all_landed(rank));
    const std::jthread opener = gate.open_soon();
    rank.update();
    EXPECT_EQ(weights(rank), expected);
  });
}

TEST(OffloadedGradients, HaveLandedWhenTheLastBackwardReturns) {
  on_ranks(one_slow_reduction(kPinned), [](Rank& rank) {
    Gate gate(rank);
    const std::jthread opener = gate.open_soon();
    rank.micro_batch(0);
    EXPECT_TRUE(all_landed(rank));
  });
}

// "first" has no input that requires grad: its reduction comes after the root's.
TEST(OffloadedGradients, SayInWhichOrderTheyLandWhereBackwardDoesNotWait) {
  const auto number = [](const nn::ParamSlot& slot) {
    const auto landing = slot.value.grad().storage()->attachment<nn::Landing>();
    return landing == nullptr ? -1 : landing->number;
  };
  for (const CpuOffloadPolicy& policy : {kAsTheyLand, kPinned}) {
    on_ranks(with({}, policy), [&](Rank& rank) {
      rank.micro_batch(0);
      const Net& net = rank.net();
      const std::vector<std::int64_t> found{number(net.second.weight), number(net.norm.weight), number(net.head.weight),
                                            number(net.first.weight)};
      EXPECT_EQ(found,
                policy.wait_in_backward ? std::vector<std::int64_t>(4, -1) : (std::vector<std::int64_t>{0, 1, 1, 2}));
    });
  }
}

TEST(OffloadedGradients, InPageableMemoryBlockTheHost) {
  on_ranks(one_slow_reduction(kPageable), [](Rank& rank) {
    FsdpState::of(rank.net())->is_last_backward = false;
    Gate gate(rank);
    const std::jthread opener = gate.open_soon();
    rank.micro_batch(0);
    EXPECT_TRUE(all_landed(rank));
    EXPECT_EQ(gradients(rank), expected_gradients(1));
  });
}

TEST(OffloadedGradients, BlockTheHostWhenTheyAreAddedToOthers) {
  on_ranks(one_slow_reduction(kPinned), [](Rank& rank) {
    rank.micro_batch(0);
    FsdpState::of(rank.net())->is_last_backward = false;
    Gate gate(rank);
    const std::jthread opener = gate.open_soon();
    rank.micro_batch(1);
    EXPECT_EQ(rank.host_bytes(MemCategory::kGradient), rank.host_bytes(kShard));  // the copies are gone
    EXPECT_EQ(gradients(rank), expected_gradients(2));
  });
}

// --- Dry runs and the configuration

TEST(OffloadedDryRun, CountsTheSameBytesAndTakesNone) {
  const auto allocator = std::make_shared<CountingAllocator>();
  device::MemStats real;
  device::MemStats dry;
  const auto run = [](const Scene& scene, device::MemStats& stats) {
    on_ranks(scene, [&](Rank& rank) {
      rank.step();
      stats = rank.device().host_memory().stats();
    });
  };
  run(with({}, kPinned), real);
  run(with({.allocator = allocator, .dry_run = true}, kPinned), dry);
  EXPECT_EQ(dry.by_category, real.by_category);
  EXPECT_EQ(dry.peak_by_category, real.peak_by_category);
  EXPECT_THAT(allocator->pins(), IsEmpty());
}

TEST(OffloadInTheYaml, ReachesEveryGroup) {
  launch::run_ranks(2, {std::chrono::seconds(60)}, [](RankContext& context, comm::World& world) {
    device::Device::install(context, {});
    const auto plan_of = [](Net& net, std::string_view keys) {
      return resolve_fsdp2(
          net, parse_fsdp2_config("sharding_size: auto\nsub_modules_to_wrap: [first]\n" + std::string(keys), "f.yaml"),
          2, GatherLayout::kFast);
    };
    Net on_device;
    EXPECT_FALSE(plan_of(on_device, "pin_memory: true").options.cpu_offload.has_value());
    Net pageable;
    EXPECT_FALSE(plan_of(pageable, "offload_to_cpu: true").options.cpu_offload->pin_memory);
    Net pinned;
    parallelize(pinned, plan_of(pinned, "offload_to_cpu: true\npin_memory: true"), world);
    materialize_shards(pinned);
    for (const Tensor& parameter : pinned.parameters()) {
      EXPECT_EQ(parameter.storage()->place(), Place::kHost);
      EXPECT_TRUE(parameter.storage()->pinned());
    }
    EXPECT_THAT(describe_groups(pinned),
                ::testing::HasSubstr("shards, gradients and optimizer state in pinned host memory\n"));
  });
}

}  // namespace
}  // namespace loom::sharding
