// Promise: each switch of FSDPModule changes what it names, where it names it, and nothing else.
// World:   2 or 4 ranks as threads; Toy of 2 layers, wrapped embed, layers.0, layers.1, head and root; 12 tokens a
//          micro-batch.
#include <cmath>
#include <functional>
#include <gmock/gmock.h>
#include <map>

#include "engine/core/error.h"
#include "engine/device/recorder.h"
#include "engine/launch/run_ranks.h"
#include "engine/nn/init.h"
#include "sharding/fully_shard.h"
#include "sharding/memory.h"
#include "tests/support/files.h"
#include "tests/support/schedule_models.h"
#include "tests/support/schedule_tokens.h"

namespace loom::sharding {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

using Gradients = std::map<std::string, std::vector<double>>;  // this rank's rows, by path
using Tokens = std::vector<std::string>;

MixedPrecisionPolicy policy(std::optional<DType> param_dtype, std::optional<DType> reduce_dtype) {
  MixedPrecisionPolicy chosen;
  chosen.param_dtype = param_dtype;
  chosen.reduce_dtype = reduce_dtype;
  return chosen;
}

struct Setting {
  int shard_size = 2;
  MixedPrecisionPolicy policy = {};
  std::optional<bool> reshard_after_forward = true;
};

// One rank's sharded toy.
class Fixture {
 public:
  Fixture(RankContext& context, comm::World& world, const Setting& setting) {
    device::Device::install(context, {});
    FullyShardOptions options;
    options.axes = sharding::FsdpAxes::over(world, setting.shard_size);
    options.policy = setting.policy;
    options.reshard_after_forward = setting.reshard_after_forward;
    for (const char* path : {"embed", "layers.0", "layers.1", "head"}) fully_shard(*toy.find(path), options);
    fully_shard(toy, options);
    materialize_shards(toy);
    nn::init_weights(toy, 1);
    rank_ = world.rank();
  }

  nn::Module& at(std::string_view path) { return *toy.find(path); }

  Tensor forward(int micro_batch) {
    const Tensor ids = tokens(micro_batch, 0);
    const Tensor logits = toy(ids).tensor();
    return ops::cross_entropy(ops::cast(logits, DType::kF32), tokens(micro_batch, 1));
  }
  // Forward and backward of micro-batch number `index`: every rank has its own ids.
  Gradients train(int index) {
    autograd::backward(forward(index));
    return gradients();
  }
  Gradients gradients() {
    Gradients found;
    for (auto& [path, parameter] : toy.named_parameters()) {
      if (parameter.grad().defined()) found[path] = parameter.grad().to_vector<double>();
    }
    return found;
  }
  void zero_grad() {
    for (const Tensor& parameter : toy.parameters()) parameter.set_grad({});
  }
  // Tokens of what `work` does, without the forwards' own.
  Tokens traced(const std::function<void()>& work) {
    const device::Recorder recorder(device::Device::current());
    work();
    return test::schedule_tokens(recorder.recording());
  }

  test::Toy toy{2, /*tied=*/false};

 private:
  Tensor tokens(int micro_batch, int shift) const {
    const Tensor ids = Tensor::host({2, 6}, DType::kI32, "ids");
    for (int i = 0; i < 12; ++i) {
      ids.data<std::int32_t>()[i] =
          (7 * i + 5 * micro_batch + 3 * rank_ + 11 * shift) % static_cast<int>(test::kToyVocab);
    }
    return ids;
  }

  int rank_ = 0;
};

void on_ranks(int ranks, const Setting& setting, const std::function<void(Fixture&)>& body) {
  launch::run_ranks(ranks, {std::chrono::minutes(1)}, [&](RankContext& context, comm::World& world) {
    Fixture fixture(context, world, setting);
    body(fixture);
  });
}

// Each expected value times `factor`, within a rounding of `relative` of the largest.
void expect_equal(const Gradients& actual, const Gradients& expected, double relative, double factor = 1) {
  ASSERT_EQ(actual.size(), expected.size());
  for (const auto& [path, values] : expected) {
    double largest = 0;
    for (const double value : values) largest = std::max(largest, std::abs(factor * value));
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_NEAR(actual.at(path)[i], factor * values[i], relative * largest) << path << " element " << i;
    }
  }
}

constexpr double kFp32Rounding = 1e-6;

Gradients sum(Gradients a, const Gradients& b) {
  for (auto& [path, values] : a) {
    for (std::size_t i = 0; i < values.size(); ++i) values[i] += b.at(path)[i];
  }
  return a;
}

// --- all-reduce

struct Mesh {
  int ranks;
  int shard_size;
};

class RequiresAllReduce : public ::testing::TestWithParam<Mesh> {
 protected:
  // `three[i]`: the gradients of micro-batch i alone.
  void expect_partials_once(const MixedPrecisionPolicy& policy, double relative) {
    on_ranks(GetParam().ranks, {.shard_size = GetParam().shard_size, .policy = policy}, [&](Fixture& f) {
      Gradients three;
      for (int i = 0; i < 3; ++i) {
        three = i == 0 ? f.train(i) : sum(three, f.train(i));
        f.zero_grad();
      }
      set_requires_all_reduce(f.toy, false);
      EXPECT_THAT(f.train(0), IsEmpty());
      EXPECT_THAT(f.train(1), IsEmpty());
      set_requires_all_reduce(f.toy, true);
      expect_equal(f.train(2), three, relative);
      // Nothing of it is left for the next step.
      f.zero_grad();
      const Gradients after = f.train(0);
      f.zero_grad();
      expect_equal(f.train(0), after, 0);
    });
  }
};

TEST_P(RequiresAllReduce, OffKeepsPartialsThatTheNextSyncAddsExactlyOnce) { expect_partials_once({}, kFp32Rounding); }

TEST_P(RequiresAllReduce, KeepsPartialsInTheReduceDtype) {
  // Gradients are bf16, so partials kept in bf16 would be off by up to 2^-9 each.
  expect_partials_once(policy(DType::kBF16, DType::kF32), kFp32Rounding);
}

INSTANTIATE_TEST_SUITE_P(Meshes, RequiresAllReduce, ::testing::Values(Mesh{4, 2}, Mesh{2, 1}),
                         [](const auto& p) { return "RanksOver" + std::to_string(p.param.shard_size); });

TEST(RequiresAllReduce, OffReduceScattersOnly) {
  on_ranks(4, {.shard_size = 2}, [](Fixture& f) {
    set_requires_all_reduce(f.toy, false);
    const Tokens off = f.traced([&] { f.train(0); });
    EXPECT_THAT(off, Contains("RS:layers.1[4]"));
    EXPECT_THAT(off, Each(Not(StartsWith("RSAR"))));
    set_requires_all_reduce(f.toy, true);
    EXPECT_THAT(f.traced([&] { f.train(1); }), Contains("RSAR:layers.1[4]"));
  });
}

TEST(RequiresAllReduce, MeansNothingOnOneAxis) {
  on_ranks(2, {}, [](Fixture& f) {
    const Gradients on = f.train(0);
    f.zero_grad();
    set_requires_all_reduce(f.toy, false);
    expect_equal(f.train(0), on, 0);
  });
}

TEST(RequiresGradientSync, SetsTheAllReduceToo) {
  on_ranks(4, {.shard_size = 2}, [](Fixture& f) {
    set_requires_all_reduce(f.toy, false);
    set_requires_gradient_sync(f.toy, true);
    EXPECT_EQ(f.train(0).size(), f.toy.parameters().size());
  });
}

// --- reshard

TEST(ReshardAfterForward, IsChosenForTheRootToo) {
  on_ranks(2, {.reshard_after_forward = std::nullopt}, [](Fixture& f) {
    set_reshard_after_forward(f.toy, true);
    EXPECT_THAT(f.traced([&] { f.forward(0); }), Contains("RE:"));
  });
  on_ranks(2, {.reshard_after_forward = std::nullopt}, [](Fixture& f) {
    EXPECT_THAT(f.traced([&] { f.forward(0); }), Not(Contains("RE:")));  // what the root does by itself
  });
}

TEST(ReshardAfterForward, OffLeavesBackwardNothingToGather) {
  on_ranks(2, {}, [](Fixture& f) {
    set_reshard_after_forward(f.toy, false);
    const Tensor loss = f.forward(0);
    const Tokens backward = f.traced([&] { autograd::backward(loss); });
    EXPECT_THAT(backward, Each(Not(StartsWith("AG:"))));
    EXPECT_THAT(backward, Contains("RE:layers.0"));
  });
}

TEST(ReshardAfterForward, MayBeSetForOneModule) {
  on_ranks(2, {}, [](Fixture& f) {
    set_reshard_after_forward(f.toy, false, /*recurse=*/false);
    const Tokens forward = f.traced([&] { f.forward(0); });
    EXPECT_THAT(forward, Not(Contains("RE:")));
    EXPECT_THAT(forward, Contains("RE:layers.0"));
  });
}

TEST(ReshardAfterBackward, OffKeepsTheParametersForTheNextMicroBatch) {
  on_ranks(2, {}, [](Fixture& f) {
    set_reshard_after_forward(f.toy, false);
    set_reshard_after_backward(f.toy, false);
    f.train(0);
    set_reshard_after_backward(f.toy, true);
    const Tokens second = f.traced([&] { f.train(1); });
    EXPECT_THAT(second, Each(Not(StartsWith("AG:"))));
    EXPECT_THAT(second, Contains("RE:layers.0"));
    EXPECT_TRUE(FsdpState::of(f.toy)->group()->is_sharded());
  });
}

// --- backward

TEST(UnshardInBackward, OffGathersAnEmbeddingForForwardOnly) {
  on_ranks(2, {}, [](Fixture& f) {
    const Gradients gathered = f.train(0);
    f.zero_grad();
    set_unshard_in_backward(f.at("embed"), false);
    Gradients kept;
    const Tokens step = f.traced([&] { kept = f.train(0); });
    EXPECT_EQ(std::count(step.begin(), step.end(), "AG:embed"), 1);
    EXPECT_EQ(std::count(step.begin(), step.end(), "AG:layers.0"), 2);
    expect_equal(kept, gathered, 0);
  });
}

TEST(IsLastBackward, OffLeavesTheLastReductionInFlight) {
  on_ranks(2, {}, [](Fixture& f) {
    const auto reduce_bytes = [] {
      const device::MemStats stats = device::Device::current().memory().stats();
      return stats.by_category[kReduceBuffer];
    };
    set_is_last_backward(f.toy, false);
    f.train(0);
    EXPECT_GT(reduce_bytes(), 0);
    set_is_last_backward(f.toy, true);
    const Gradients both = f.train(1);
    EXPECT_EQ(reduce_bytes(), 0);
    f.zero_grad();
    const Gradients first = f.train(0);
    f.zero_grad();
    expect_equal(both, sum(first, f.train(1)), kFp32Rounding);
  });
}

// --- division

struct Division {
  int ranks;
  int shard_size;
  DType reduce_dtype;
};

class DivideFactor : public ::testing::TestWithParam<Division> {};

// The mean over W ranks times W / f: the sum over f, whatever the mesh and the dtype.
TEST_P(DivideFactor, ReplacesTheNumberOfRanks) {
  const auto [ranks, shard_size, reduce_dtype] = GetParam();
  const double rounding = reduce_dtype == DType::kF16 ? 2e-3 : kFp32Rounding;
  on_ranks(ranks, {.shard_size = shard_size, .policy = policy({}, reduce_dtype)}, [&, ranks = ranks](Fixture& f) {
    const Gradients mean = f.train(0);
    for (const double factor : {1.0, 2.0, 3.0}) {
      f.zero_grad();
      for (const char* path : {"", "embed", "layers.0", "layers.1", "head"})
        set_gradient_divide_factor(f.at(path), factor);
      expect_equal(f.train(0), mean, rounding, ranks / factor);
    }
  });
}

TEST_P(DivideFactor, HoldsForForcedSumsToo) {
  const auto [ranks, shard_size, reduce_dtype] = GetParam();
  const double rounding = reduce_dtype == DType::kF16 ? 2e-3 : kFp32Rounding;
  on_ranks(ranks, {.shard_size = shard_size, .policy = policy({}, reduce_dtype)}, [&, ranks = ranks](Fixture& f) {
    const Gradients mean = f.train(0);
    f.zero_grad();
    for (const char* path : {"", "embed", "layers.0", "layers.1", "head"})
      set_force_sum_reduction_for_comms(f.at(path), true);
    expect_equal(f.train(0), mean, rounding);
    f.zero_grad();
    for (const char* path : {"", "embed", "layers.0", "layers.1", "head"}) set_gradient_divide_factor(f.at(path), 3);
    expect_equal(f.train(0), mean, rounding, ranks / 3.0);
  });
}

INSTANTIATE_TEST_SUITE_P(Meshes, DivideFactor,
                         ::testing::Values(Division{1, 1, DType::kF32}, Division{1, 1, DType::kF16},
                                           Division{2, 2, DType::kF32}, Division{2, 2, DType::kF16},
                                           Division{4, 2, DType::kF32}, Division{4, 2, DType::kF16}),
                         [](const auto& p) {
                           return std::to_string(p.param.ranks) + "RanksOver" + std::to_string(p.param.shard_size) +
                                  std::string(name(p.param.reduce_dtype));
                         });

TEST(DivideFactor, IsOfOneModule) {
  on_ranks(2, {}, [](Fixture& f) {
    const Gradients mean = f.train(0);
    f.zero_grad();
    set_reduce_scatter_divide_factor(f.at("head"), 1);  // the older name
    Gradients expected = mean;
    for (double& value : expected.at("head.weight")) value *= 2;
    expect_equal(f.train(0), expected, kFp32Rounding);
  });
}

TEST(DivideFactor, MustBeAbove0) {
  on_ranks(1, {.shard_size = 1}, [](Fixture& f) {
    EXPECT_EQ(test::message_of<ConfigError>([&] { set_gradient_divide_factor(f.at("head"), 0); }),
              "gradient divide factor of a Linear is 0; use a number above 0");
  });
}

TEST(ForceSum, IsOfOneModule) {
  on_ranks(1, {.shard_size = 1}, [](Fixture& f) {
    set_force_sum_reduction_for_comms(f.at("head"), true);
    EXPECT_TRUE(FsdpState::of(f.at("head"))->group()->switches().force_sum_reduction);
    EXPECT_FALSE(FsdpState::of(f.at("embed"))->group()->switches().force_sum_reduction);
  });
}

TEST(ForceSum, SumsInBothCollectivesAndDividesAfterwards) {
  const ReducePlan plan = plan_reduction(DType::kBF16, 4, 2, std::nullopt, /*force_sum=*/true);
  EXPECT_EQ(plan.reduce_scatter.kind, comm::ReduceOp::sum().kind);
  EXPECT_EQ(plan.all_reduce.kind, comm::ReduceOp::sum().kind);
  EXPECT_EQ(plan.pre_divide, 1);
  EXPECT_EQ(plan.post_divide, 8);  // 4 * 2 ranks
}

}  // namespace
}  // namespace loom::sharding
