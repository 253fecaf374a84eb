// Promise: a group communicates with the collectives its user brought, in the user's memory or the process group's; the
//          bits stay the same, other groups do not notice, and what cannot be is refused by name.
// World:   2 or 4 ranks as threads; root and 2 blocks of width 5 (uneven over 2 ranks).
#include <atomic>
#include <cstdlib>
#include <gmock/gmock.h>
#include <mutex>

#include "engine/core/error.h"
#include "sharding/lanes.h"
#include "tests/support/files.h"
#include "tests/support/toy_models.h"
#include "tests/support/world.h"

namespace loom::sharding {
namespace {

using test::message_of;
using test::run_world;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

// Memory that is counted while it lives.
class CountedMemory {
 public:
  CommBuffer allocate(std::size_t bytes) {
    ++made;
    ++live;
    const std::size_t rounded = (bytes + 63) / 64 * 64;
    auto* data = static_cast<std::byte*>(std::aligned_alloc(64, rounded));
    return {std::shared_ptr<std::byte>(data, [this](std::byte* memory) { std::free(memory), --live; }), bytes};
  }
  std::atomic<int> made{0};
  std::atomic<int> live{0};
};

// One broadcast a member.
class BroadcastGather : public AllGather {
 public:
  CommBuffer allocate(CommBufferUse use, std::size_t bytes) override {
    EXPECT_EQ(use, CommBufferUse::kGatherOutput);
    return memory.allocate(bytes);
  }
  void operator()(void* output, const void* input, std::size_t bytes, comm::ProcessGroup& group,
                  std::string_view tag) override {
    auto* place = static_cast<std::byte*>(output);
    EXPECT_EQ(input, place + static_cast<std::size_t>(group.rank()) * bytes);
    for (int r = 0; r < group.size(); ++r) {
      group.broadcast(kGatherLane, place + static_cast<std::size_t>(r) * bytes, bytes, r, tag);
    }
    ++calls;
  }
  CountedMemory memory;
  std::atomic<int> calls{0};
};

// An all-reduce of which the own row is kept.
class AllReduceScatter : public ReduceScatter {
 public:
  CommBuffer allocate(CommBufferUse use, std::size_t bytes) override {
    EXPECT_NE(use, CommBufferUse::kGatherOutput);
    return memory.allocate(bytes);
  }
  void operator()(void* output, const void* input, std::int64_t elems, DType dtype, comm::ReduceOp op,
                  comm::ProcessGroup& group, std::string_view tag) override {
    const std::size_t row_bytes = elems * element_bytes(dtype);
    const auto* rows = static_cast<const std::byte*>(input);
    std::vector<std::byte> all(rows, rows + static_cast<std::size_t>(group.size()) * row_bytes);
    group.all_reduce(kReduceScatterLane, all.data(), group.size() * elems, dtype, op, tag);
    std::memcpy(output, all.data() + static_cast<std::size_t>(group.rank()) * row_bytes, row_bytes);
    ++calls;
  }
  CountedMemory memory;
  std::atomic<int> calls{0};
};

struct Way {
  int ranks = 2;
  int shard_size = 2;
  GatherLayout layout = GatherLayout::kBuffered;
  device::ExecutorKind executor = device::ExecutorKind::kInline;
  int reshard_ranks = 0;  // 0: reshard_after_forward is true
  bool bf16 = false;      // compute bf16, reduce fp32
};

FullyShardOptions options_of(comm::World& world, const Way& way) {
  FullyShardOptions options = test::sharded_over(world, way.shard_size, way.layout);
  options.reshard_after_forward = true;
  if (way.reshard_ranks > 0) options.reshard_after_forward = way.reshard_ranks;
  if (way.bf16) {
    options.policy.param_dtype = DType::kBF16;
    options.policy.reduce_dtype = DType::kF32;
  }
  return options;
}

using Gradients = std::vector<std::pair<std::string, std::vector<double>>>;

// The gradients of every rank after three micro-batches; `change` is called before each with its number.
std::vector<Gradients> train(const Way& way, const std::function<void(test::ToyChain&, int)>& change) {
  return test::of_each_rank(way.ranks,
                            [&](RankContext& context, comm::World& world) {
                              const auto chain = test::sharded_chain(test::kOddWidth, 2, options_of(world, way));
                              for (int i = 0; i < 3; ++i) {
                                change(*chain, i);
                                test::forward_backward(*chain,
                                                       test::toy_input(10 * i + context.rank(), 3, test::kOddWidth));
                              }
                              device::Device::current().synchronize();
                              return test::gradients(*chain);
                            },
                            {.executor = way.executor});
}

std::vector<Gradients> plain(const Way& way) {
  return train(way, [](test::ToyChain&, int) {});
}

class CustomComm : public ::testing::TestWithParam<Way> {};
INSTANTIATE_TEST_SUITE_P(
    Ways, CustomComm,
    ::testing::Values(Way{}, Way{.layout = GatherLayout::kFast}, Way{.executor = device::ExecutorKind::kThreaded},
                      Way{.ranks = 4, .shard_size = 2}, Way{.ranks = 4, .shard_size = 4, .reshard_ranks = 2},
                      Way{.layout = GatherLayout::kFast, .executor = device::ExecutorKind::kThreaded, .bf16 = true}),
    [](const auto& info) {
      const Way& way = info.param;
      return fmt::format("{}RanksOver{}{}{}{}{}", way.ranks, way.shard_size,
                         way.layout == GatherLayout::kFast ? "Fast" : "Buffered",
                         way.executor == device::ExecutorKind::kThreaded ? "Threaded" : "Inline",
                         way.reshard_ranks > 0 ? "PostForwardShards" : "", way.bf16 ? "Bf16" : "");
    });

TEST_P(CustomComm, GathersOfItsModuleWithTheSameBits) {
  const Way& way = GetParam();
  std::vector<BroadcastGather*> gathers(static_cast<std::size_t>(way.ranks));
  std::vector<std::shared_ptr<BroadcastGather>> owned;
  for (BroadcastGather*& gather : gathers) gather = owned.emplace_back(std::make_shared<BroadcastGather>()).get();
  const auto with = train(way, [&](test::ToyChain& chain, int batch) {
    if (batch == 0)
      set_custom_all_gather(chain.block(0), owned[static_cast<std::size_t>(RankContext::current().rank())]);
  });
  EXPECT_EQ(with, plain(way));
  for (const BroadcastGather* gather : gathers) {
    EXPECT_EQ(gather->calls, 2 * 3);  // forward and backward of three micro-batches; one group alone
    EXPECT_EQ(gather->memory.made, 2 * 3);
    EXPECT_EQ(gather->memory.live, 0);
  }
}

TEST_P(CustomComm, ReducesTheGradientsOfItsModuleWithTheSameBits) {
  const Way& way = GetParam();
  std::vector<std::shared_ptr<AllReduceScatter>> scatters;
  for (int r = 0; r < way.ranks; ++r) scatters.push_back(std::make_shared<AllReduceScatter>());
  const auto with = train(way, [&](test::ToyChain& chain, int batch) {
    if (batch == 0) {
      set_custom_reduce_scatter(chain.block(1), scatters[static_cast<std::size_t>(RankContext::current().rank())]);
    }
  });
  EXPECT_EQ(with, plain(way));
  for (const auto& scatter : scatters) {
    EXPECT_EQ(scatter->calls, 3);
    EXPECT_EQ(scatter->memory.made, 2 * 3);  // input and output
    EXPECT_EQ(scatter->memory.live, 0);      // gradients are no part of it
  }
}

TEST_P(CustomComm, MayBeSetAndTakenAwayBetweenSteps) {
  const Way& way = GetParam();
  std::vector<std::shared_ptr<BroadcastGather>> gathers;
  std::vector<std::shared_ptr<AllReduceScatter>> scatters;
  for (int r = 0; r < way.ranks; ++r) {
    gathers.push_back(std::make_shared<BroadcastGather>());
    scatters.push_back(std::make_shared<AllReduceScatter>());
  }
  const auto with = train(way, [&](test::ToyChain& chain, int batch) {
    const auto rank = static_cast<std::size_t>(RankContext::current().rank());
    set_custom_all_gather(chain, batch == 1 ? gathers[rank] : nullptr);
    set_custom_reduce_scatter(chain, batch == 1 ? scatters[rank] : nullptr);
  });
  EXPECT_EQ(with, plain(way));
  for (const auto& gather : gathers) EXPECT_EQ(gather->calls, 2);
  for (const auto& scatter : scatters) EXPECT_EQ(scatter->calls, 1);
}

TEST_P(CustomComm, OfTheProcessGroupsMemoryGivesTheSameBits) {
  const Way& way = GetParam();
  const auto with = train(way, [&](test::ToyChain& chain, int batch) {
    for (nn::Module* module : {static_cast<nn::Module*>(&chain), &chain.layers[0], &chain.layers[1]}) {
      set_allocate_memory_from_process_group_for_comm(*module, batch != 1);  // on, off, on again
    }
  });
  EXPECT_EQ(with, plain(way));
}

TEST(CustomCommOnOneRank, IsNotAsked) {
  run_world(1, [](RankContext&, comm::World& world) {
    const auto chain = test::sharded_chain(test::kOddWidth, 1, test::sharded_over_all(world));
    const auto gather = std::make_shared<BroadcastGather>();
    const auto scatter = std::make_shared<AllReduceScatter>();
    set_custom_all_gather(*chain, gather);
    set_custom_reduce_scatter(*chain, scatter);
    test::forward_backward(*chain, test::toy_input(0, 3, test::kOddWidth));
    EXPECT_EQ(gather->memory.made + scatter->memory.made, 0);
  });
}

TEST(CustomCommMemory, CountsAsTheEnginesOwnDoes) {
  const auto peaks = [](bool custom) {
    return test::of_each_rank(2, [custom](RankContext&, comm::World& world) {
      FullyShardOptions options = test::sharded_over_all(world);
      options.policy.reduce_dtype = DType::kF64;  // the reduced row is not the gradient either way
      const auto chain = test::sharded_chain(test::kOddWidth, 2, options);
      for (nn::Module* module : {static_cast<nn::Module*>(chain.get()), &chain->layers[0], &chain->layers[1]}) {
        if (!custom) continue;
        set_custom_all_gather(*module, std::make_shared<BroadcastGather>());
        set_custom_reduce_scatter(*module, std::make_shared<AllReduceScatter>());
      }
      test::forward_backward(*chain, test::toy_input(0, 3, test::kOddWidth));
      return device::Device::current().memory().stats().peak_by_category;
    });
  };
  EXPECT_EQ(peaks(true), peaks(false));
}

// --- Refusals

class SmallGather final : public BroadcastGather {
 public:
  CommBuffer allocate(CommBufferUse, std::size_t bytes) override { return memory.allocate(bytes / 2); }
};

class OddScatter final : public AllReduceScatter {
 public:
  CommBuffer allocate(CommBufferUse, std::size_t bytes) override {
    const CommBuffer whole = memory.allocate(bytes + 64);
    return {std::shared_ptr<std::byte>(whole.memory, whole.memory.get() + 8), bytes};
  }
};

TEST(CustomCommMemory, ThatIsTooSmallIsRefusedNamingTheGroup) {
  run_world(2, [](RankContext& context, comm::World& world) {
    const auto chain = test::sharded_chain(test::kOddWidth, 2, test::sharded_over_all(world));
    const auto gather = std::make_shared<SmallGather>();
    set_custom_all_gather(chain->block(0), gather);
    // 2 ranks x 3 rows x 5 x 4 bytes
    EXPECT_EQ(message_of<DeviceError>([&] { (*chain)(test::toy_input(0, 3, test::kOddWidth)); }),
              fmt::format("[rank {}] gather of 'layers.0': allocate() of its custom communication was called for 120 "
                          "bytes and returned 60; return at least as many as requested",
                          context.rank()));
  });
}

TEST(CustomCommMemory, ThatIsNotAlignedIsRefused) {
  run_world(2, [](RankContext& context, comm::World& world) {
    const auto chain = test::sharded_chain(test::kOddWidth, 2, test::sharded_over_all(world));
    const auto scatter = std::make_shared<OddScatter>();
    set_custom_reduce_scatter(chain->block(1), scatter);
    EXPECT_EQ(
        message_of<DeviceError>([&] { test::forward_backward(*chain, test::toy_input(0, 3, test::kOddWidth)); }),
        fmt::format("[rank {}] reduction of 'layers.1': allocate() of its custom communication gave memory 8 bytes "
                    "behind an address that is a multiple of 64; align it to 64",
                    context.rank()));
  });
}

TEST(CustomComm, OnSomeRanksOnlyIsRefusedOnAll) {
  const auto texts = test::of_each_rank(2, [](RankContext& context, comm::World& world) {
    const auto chain = test::sharded_chain(test::kOddWidth, 2, test::sharded_over_all(world));
    if (context.rank() == 1) set_custom_all_gather(chain->block(0), std::make_shared<BroadcastGather>());
    return message_of<ConfigError>([&] { (*chain)(test::toy_input(0, 3, test::kOddWidth)); });
  });
  EXPECT_THAT(texts, Each(AllOf(HasSubstr("rank 0 has group 'layers.0'"), HasSubstr("rank 1 has group 'layers.0'"),
                                HasSubstr("backward prefetches, custom all-gather)"))));
}

TEST(CustomComm, AndMemoryOfTheProcessGroupExcludeEachOther) {
  run_world(2, [](RankContext&, comm::World& world) {
    const auto chain = test::sharded_chain(test::kOddWidth, 2, test::sharded_over_all(world));
    const std::string text =
        "a ToyBlock cannot have a custom all-gather or reduce-scatter and buffers from the process group: allocate() "
        "of "
        "the custom one gives the buffers; take one of them away first";
    set_allocate_memory_from_process_group_for_comm(chain->block(0), true);
    const auto gather = std::make_shared<BroadcastGather>();
    EXPECT_EQ(message_of<ConfigError>([&] { set_custom_all_gather(chain->block(0), gather); }), text);
    set_custom_reduce_scatter(chain->block(1), std::make_shared<AllReduceScatter>());
    EXPECT_EQ(message_of<ConfigError>([&] { set_allocate_memory_from_process_group_for_comm(chain->block(1), true); }),
              text);
    set_allocate_memory_from_process_group_for_comm(chain->block(0), false);
    set_custom_all_gather(chain->block(0), gather);
    EXPECT_NO_THROW(test::forward_backward(*chain, test::toy_input(0, 3, test::kOddWidth)));
  });
}

// --- Memory of the process group

// What another group does, with a look at the segments it gives and at the memory it moves.
class WatchedGroup final : public comm::ProcessGroup {
 public:
  struct Seen {
    bool shares = true;
    std::shared_ptr<comm::SharedSegment> segment;  // the last one
    std::vector<const void*> moved;                // destinations of gathers and inputs of reductions
  };
  WatchedGroup(std::shared_ptr<comm::ProcessGroup> group, Seen& seen)
      : ProcessGroup(group->rank(), group->ranks(), group->name()), group_(std::move(group)), seen_(seen) {}

  void all_gather(comm::Lane lane, std::span<const comm::GatherPart> parts, std::string_view tag) override {
    if (lane == kGatherLane) seen_.moved.push_back(parts[0].full);
    group_->all_gather(lane, parts, tag);
  }
  void reduce_scatter(comm::Lane lane, const void* input, void* output, std::int64_t elems, DType dtype,
                      comm::ReduceOp op, std::string_view tag) override {
    seen_.moved.push_back(input);
    seen_.moved.push_back(output);
    group_->reduce_scatter(lane, input, output, elems, dtype, op, tag);
  }
  void all_reduce(comm::Lane lane, void* data, std::int64_t elems, DType dtype, comm::ReduceOp op,
                  std::string_view tag) override {
    group_->all_reduce(lane, data, elems, dtype, op, tag);
  }
  void all_to_all(comm::Lane lane, std::span<const comm::Outgoing> sends, std::span<const comm::Incoming> receives,
                  std::string_view tag) override {
    group_->all_to_all(lane, sends, receives, tag);
  }
  void send_recv(comm::Lane lane, int to, comm::Outgoing sent, int from, comm::Incoming received,
                 std::string_view tag) override {
    group_->send_recv(lane, to, sent, from, received, tag);
  }
  void broadcast(comm::Lane lane, void* data, std::size_t bytes, int root, std::string_view tag) override {
    group_->broadcast(lane, data, bytes, root, tag);
  }
  void barrier(comm::Lane lane, std::string_view tag) override { group_->barrier(lane, tag); }
  std::shared_ptr<comm::SharedSegment> share(comm::Lane lane, std::size_t bytes, std::string_view tag) override {
    return seen_.segment = seen_.shares ? group_->share(lane, bytes, tag) : nullptr;
  }

 private:
  const std::shared_ptr<comm::ProcessGroup> group_;
  Seen& seen_;
};

class WatchedWorld final : public comm::World {
 public:
  explicit WatchedWorld(comm::World& world) : world_(world) {}
  int rank() const override { return world_.rank(); }
  int size() const override { return world_.size(); }
  std::shared_ptr<comm::ProcessGroup> split(int color, int key, std::string name,
                                            std::span<const int> members) override {
    auto made = world_.split(color, key, std::move(name), members);
    return made == nullptr ? nullptr : std::make_shared<WatchedGroup>(std::move(made), seen);
  }
  void fail(const std::string& reason) noexcept override { world_.fail(reason); }
  WatchedGroup::Seen seen;

 private:
  comm::World& world_;
};

TEST(MemoryOfTheProcessGroup, HoldsEveryBufferThatMoves) {
  run_world(2, [](RankContext&, comm::World& world) {
    WatchedWorld watched(world);
    const auto chain = test::sharded_chain(test::kOddWidth, 1, test::sharded_over_all(watched));
    set_allocate_memory_from_process_group_for_comm(chain->block(0), true);
    chain->weight.value.set_requires_grad(false);  // the root's reduction is not looked at
    chain->operator()(test::toy_input(0, 3, test::kOddWidth));
    const auto segment = watched.seen.segment;
    ASSERT_NE(segment, nullptr);
    watched.seen.moved.clear();
    test::forward_backward(chain->block(0), test::toy_input(0, 3, test::kOddWidth));
    EXPECT_EQ(watched.seen.moved.size(), 2u + 2u);  // gathers of forward and backward, input and output of a reduction
    for (const void* moved : watched.seen.moved) {
      EXPECT_GE(moved, segment->data());
      EXPECT_LT(moved, segment->data() + segment->bytes());
    }
  });
}

TEST(MemoryOfTheProcessGroup, ThatSharesNoneIsRefusedNamingBothGroups) {
  run_world(2, [](RankContext&, comm::World& world) {
    WatchedWorld watched(world);
    watched.seen.shares = false;
    const auto chain = test::sharded_chain(test::kOddWidth, 1, test::sharded_over_all(watched));
    set_allocate_memory_from_process_group_for_comm(chain->block(0), true);
    EXPECT_EQ(message_of<ConfigError>([&] { (*chain)(test::toy_input(0, 3, test::kOddWidth)); }),
              "the buffers of group 'layers.0' are to come from process group 'dp_shard' (ranks 0,1), which has no "
              "allocator: its members share no memory; leave set_allocate_memory_from_process_group_for_comm off");
  });
}

TEST(MemoryOfTheProcessGroup, DoesNotKeepGradients) {
  run_world(2, [](RankContext& context, comm::World& world) {
    const auto chain = test::sharded_chain(test::kOddWidth, 1, test::sharded_over_all(world));
    set_allocate_memory_from_process_group_for_comm(chain->block(0), true);
    test::forward_backward(*chain, test::toy_input(context.rank(), 3, test::kOddWidth));
    const Gradients first = test::gradients(*chain);
    std::vector<Tensor> kept;
    for (const Tensor& parameter : chain->parameters()) {
      kept.push_back(parameter.grad());
      parameter.set_grad({});
    }
    test::forward_backward(*chain, test::toy_input(context.rank() + 5, 3, test::kOddWidth));
    test::forward_backward(*chain, test::toy_input(context.rank() + 7, 3, test::kOddWidth));
    for (std::size_t i = 0; i < kept.size(); ++i) EXPECT_EQ(kept[i].to_vector<double>(), first[i].second);
  });
}

}  // namespace
}  // namespace loom::sharding
