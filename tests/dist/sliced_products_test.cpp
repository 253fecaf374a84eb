// Promise: products beside the collective of their input or result have the bits of collective and product one after
//          the other, forward and backward; of n equal slices only the first gather and the last sum are exposed; a
//          plan issues what a run issues; an input that is gathered again is not kept whole.
// World:   2 to 4 ranks as threads; a block of two column-parallel layers that read one input, and a row-parallel one.
//          Virtual time: two ranks in a node of the tiny profile, a byte and 2 FLOP a ns.

#include "engine/dist/sliced_products.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <optional>

#include "engine/comm/simulated/simulated.h"
#include "engine/core/error.h"
#include "engine/dist/operators.h"
#include "engine/tensor/autograd.h"
#include "engine/tensor/ops/general.h"
#include "engine/virtual_time/resolve.h"
#include "engine/virtual_time/time_model.h"
#include "tests/dist/dist_ranks.h"
#include "tests/support/tiny_profile.h"
#include "tests/tensor/tensors.h"

namespace loom::dist {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

struct Sizes {
  std::int64_t batch = 1, tokens = 4, hidden = 24, inner = 40;  // tokens of a rank, inner of a rank
};

struct Way {
  int slices = 1;
  bool gathers_again = false;
  bool one_after_the_other = false;  // by the operators of operators.h
};

Tensor values(const Shape& shape, int seed, DType dtype) {
  const Tensor x = Tensor::from(test::normals(shape.numel(), seed), shape, dtype);
  x.set_requires_grad(true);
  return x;
}

struct Parameters {
  ops::LinearMatrix gate, up, down;
  std::vector<Tensor> all() const { return {gate.weight, gate.bias, up.weight, down.weight}; }
};

Parameters parameters(const Sizes& s, int rank, bool out_in, DType dtype) {
  const auto weight = [&](std::int64_t out, std::int64_t in, int seed) {
    return values(out_in ? Shape{out, in} : Shape{in, out}, seed + 10 * rank, dtype);
  };
  return {{weight(s.inner, s.hidden, 1), out_in, values({s.inner}, 2 + 10 * rank, dtype)},
          {weight(s.inner, s.hidden, 3), out_in},
          {weight(s.hidden, s.inner, 4), out_in}};
}

Tensor linear(const Tensor& x, const ops::LinearMatrix& m) {
  if (m.out_in) return ops::linear(x, m.weight, m.bias);
  return ops::linear_kn(x, m.weight, m.bias);
}

Tensor block(const Tensor& x, const Parameters& p, const Way& way, const Channel& channel) {
  if (way.one_after_the_other) {
    const Tensor whole = all_gather(x, 1, channel, "block");
    const Tensor gate = linear(whole, p.gate), up = linear(whole, p.up);
    return reduce_scatter(linear(ops::swiglu(gate, up), p.down), 1, channel, "down");
  }
  GatheredInput input(x, {way.slices, way.gathers_again}, channel, "block");
  const Tensor gate = input.product(p.gate), up = input.product(p.up);
  return product_and_sum(ops::swiglu(gate, up), p.down, way.slices, channel, "down");
}

using Bits = std::vector<std::vector<double>>;

// The result, and the gradients of the input and the parameters.
Bits step(const Sizes& s, const Way& way, bool out_in, DType dtype, const Channel& channel) {
  const Tensor x = values({s.batch, s.tokens, s.hidden}, 5 + 10 * channel.rank(), dtype);
  const Parameters p = parameters(s, channel.rank(), out_in, dtype);
  const Tensor y = block(x, p, way, channel);
  const Tensor dy = values(y.shape(), 6 + 10 * channel.rank(), dtype).detach();
  autograd::backward(y, dy);
  Bits bits{y.to_vector<double>(), x.grad().to_vector<double>()};
  for (const Tensor& parameter : p.all()) {
    if (parameter.defined()) bits.push_back(parameter.grad().to_vector<double>());
  }
  return bits;
}

struct World {
  int ranks;
  device::ExecutorKind executor;
};
void PrintTo(const World& world, std::ostream* out) {
  *out << world.ranks << (world.executor == device::ExecutorKind::kInline ? " inline" : " threaded");
}

class SlicedProducts : public testing::TestWithParam<World> {};

TEST_P(SlicedProducts, HaveTheBitsOfCollectiveAndProductOneAfterTheOther) {
  const auto [ranks, executor] = GetParam();
  test::DistOptions options;
  options.executor = executor;
  test::run_dist(
      ranks,
      [&](const Channel& channel, comm::World&) {
        for (const std::int64_t batch : {1, 2, 3}) {
          for (const DType dtype : {DType::kF32, DType::kBF16}) {
            const Sizes s{.batch = batch};
            const bool out_in = batch != 2;
            const Bits expected = step(s, {.one_after_the_other = true}, out_in, dtype, channel);
            for (const Way way : {Way{1, true}, Way{2}, Way{2, true}, Way{3}, Way{4}, Way{4, true}, Way{16}}) {
              EXPECT_EQ(step(s, way, out_in, dtype, channel), expected)
                  << way.slices << " slices" << (way.gathers_again ? ", gathered again" : "") << ", batch " << batch
                  << ", rank " << channel.rank();
            }
          }
        }
      },
      options);
}

INSTANTIATE_TEST_SUITE_P(Worlds, SlicedProducts,
                         testing::Values(World{2, device::ExecutorKind::kInline},
                                         World{2, device::ExecutorKind::kThreaded},
                                         World{3, device::ExecutorKind::kThreaded},
                                         World{4, device::ExecutorKind::kThreaded}));

// Without a layer that takes it, and with one that is not linear.
TEST(AGatheredInput, IsWholeForOthersOnceItIsWaitedFor) {
  test::run_dist(2, [](const Channel& channel, comm::World&) {
    const Tensor x = values({2, 4, 8}, channel.rank(), DType::kF32), same = x.detach();
    same.set_requires_grad(true);
    GatheredInput input(x, {.slices = 2}, channel, "block");
    EXPECT_THAT([&] { ops::scale(input.whole(), 2); },
                ThrowsMessage<ModelError>(
                    HasSubstr("scale reads hidden states that are still gathered for 'block': between a block and its "
                              "layers nothing may read them; use overlap_slices: 1")));
    input.wait();
    const Tensor y = ops::mul(input.whole(), input.whole());
    const Tensor expected = all_gather(same, 1, channel, "block"), z = ops::mul(expected, expected);
    EXPECT_EQ(y.to_vector<float>(), z.to_vector<float>());
    autograd::backward(ops::sum(y));
    autograd::backward(ops::sum(z));
    EXPECT_EQ(x.grad().to_vector<float>(), same.grad().to_vector<float>());
  });
}

// --- Memory

// What a block keeps between forward and backward, above its results.
std::int64_t kept_bytes(const Way& way) {
  std::int64_t kept = 0;
  test::run_dist(2, [&](const Channel& channel, comm::World& world) {
    const Sizes s{.batch = 2, .tokens = 64, .hidden = 32, .inner = 32};
    const Parameters p = parameters(s, world.rank(), true, DType::kF32);
    // A norm's result: nobody but the layers keeps it.
    const Tensor residual = values({s.batch, s.tokens, s.hidden}, 5, DType::kF32);
    device::DeviceMemory& memory = device::Device::current().memory();
    const std::int64_t before = memory.stats().total_bytes;
    const Tensor gate = [&] {
      const Tensor x = ops::scale(residual, 0.5);
      GatheredInput input(x, {way.slices, way.gathers_again}, channel, "block");
      return input.product(p.gate);
    }();
    if (world.rank() == 0) kept = memory.stats().total_bytes - before - gate.nbytes();
  });
  return kept;
}

// [2, 64, 32] of a rank in fp32, and that of both.
TEST(AnInputThatIsGatheredAgain, IsKeptInParts) {
  const std::int64_t part = 2 * 64 * 32 * 4;
  for (const int slices : {1, 2}) {
    EXPECT_EQ(kept_bytes({slices, true}), part) << slices;
    EXPECT_EQ(kept_bytes({slices, false}), 2 * part) << slices;
  }
}

// --- Order and time

// Forward and backward of a block of 16 tokens a rank, hidden 16 and inner 32, with one column-parallel layer.

device::Recording recorded(const Way& way, const Channel& channel) {
  const Sizes s{.tokens = 16, .hidden = 16, .inner = 32};
  const Tensor x = Tensor::zeros({s.batch, s.tokens, s.hidden}, DType::kF32);
  x.set_requires_grad(true);
  const auto matrix = [](std::int64_t out, std::int64_t in) {
    const Tensor weight = Tensor::zeros({out, in}, DType::kF32);
    weight.set_requires_grad(true);
    return ops::LinearMatrix{weight};
  };
  const ops::LinearMatrix up = matrix(s.inner, s.hidden), down = matrix(s.hidden, s.inner);
  const Tensor dy = Tensor::zeros(x.shape(), DType::kF32);
  const device::Recorder recorder(device::Device::current());
  Tensor y;
  if (way.one_after_the_other) {
    const Tensor inner = ops::linear(all_gather(x, 1, channel, "block"), up.weight);
    y = reduce_scatter(ops::linear(inner, down.weight), 1, channel, "down");
  } else {
    GatheredInput input(x, {way.slices, way.gathers_again}, channel, "block");
    y = product_and_sum(input.product(up), down, way.slices, channel, "down");
  }
  autograd::backward(y, dy);
  return recorder.recording();
}

std::vector<device::Recording> recordings_of_run(const Way& way) {
  std::vector<device::Recording> recordings(2);
  test::run_dist(2, [&](const Channel& channel, comm::World& world) {
    recordings[static_cast<std::size_t>(world.rank())] = recorded(way, channel);
  });
  return recordings;
}

device::Recording planned(const Way& way, int rank) {
  RankContext context(rank, 2);
  const RankScope scope(context);
  device::Device::install(context, {.dry_run = true});
  const auto world = comm::make_simulated_world(rank, 2);
  return recorded(way, Channel{world->everyone("ep")});
}

// Products and collectives, by their streams.
std::vector<std::string> order_of(const device::Recording& recording) {
  std::vector<std::string> order;
  for (const device::Entry& entry : recording.entries) {
    if (!device::is_stream_work(entry.kind)) continue;
    const std::string& name = recording.text(entry.name);
    if (entry.kind == device::EntryKind::kCollective) {
      order.push_back(fmt::format("{} {} on {}", name, recording.text(entry.subject), entry.stream.name()));
    } else if (name.starts_with("linear")) {
      order.push_back(name);
    }
  }
  return order;
}

TEST(ASlice, RunsBesideTheCollectiveOfTheNext) {
  const std::string gather = "all_gather block on exchange", gather_down = "all_gather down on exchange";
  const std::string sum = "reduce_scatter block on exchange", sum_down = "reduce_scatter down on exchange";
  EXPECT_THAT(order_of(planned({2}, 0)),
              ElementsAre(gather, gather, "linear", "linear", "linear", sum_down, "linear", sum_down,
                          // backward
                          gather_down, gather_down, "linear_dx", "linear_dx", "linear_dw", "linear_dx", sum,
                          "linear_dx", sum, "linear_dw"));
  EXPECT_THAT(order_of(planned({2, true}, 0)),
              ElementsAre(gather, gather, "linear", "linear", "linear", sum_down, "linear", sum_down,
                          // backward
                          gather_down, gather_down, "linear_dx", "linear_dx", "linear_dw", gather, "linear_dx", sum,
                          "linear_dx", sum, "linear_dw"));
}

TEST(APlanOfSlices, IssuesWhatTheRunIssues) {
  for (const Way way : {Way{2}, Way{3}, Way{1, true}, Way{2, true}}) {
    const std::vector<device::Recording> run = recordings_of_run(way);
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_EQ(test::events_of(planned(way, rank)), test::events_of(run[static_cast<std::size_t>(rank)]))
          << way.slices << " slices, rank " << rank;
    }
  }
}

std::int64_t elapsed(const Way& way) {
  const device::Recording first = planned(way, 0), second = planned(way, 1);
  const virtual_time::TimeModel model(test::tiny_profile());
  const std::vector<virtual_time::RankRecording> ranks{{0, &first}, {1, &second}};
  const virtual_time::VirtualTimes times = virtual_time::resolve(ranks, model);
  std::int64_t end = 0;
  for (const virtual_time::EntryTime& entry : times.ranks[0].entries) end = std::max(end, entry.end);
  return end;
}

// Six products of 32 x 16 x 32, at 2 FLOP a ns: 16384 ns each. Four collectives bring 16 tokens of 16 fp32 of the other
// rank, at a byte a ns: 1024 ns each. Of n slices one n-th of a gather, of a sum and of the gather in backward is
// exposed; the last sum has the product for the weight's gradient beside it.
TEST(VirtualTimeOfSlices, HasOneSliceOfACollectiveExposed) {
  const std::int64_t products = 6 * 16384, collective = 1024;
  EXPECT_EQ(elapsed({.one_after_the_other = true}), products + 4 * collective);
  for (const int slices : {2, 4}) {
    EXPECT_EQ(elapsed({slices}), products + 3 * collective / slices) << slices;
    EXPECT_EQ(elapsed({slices, true}), products + 3 * collective / slices) << slices;
  }
}

}  // namespace
}  // namespace loom::dist
