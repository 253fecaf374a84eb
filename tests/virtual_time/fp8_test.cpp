// Promise: a linear layer in FP8 takes the time of its product at FP8's rate and that of its casts, by recipe; other
//          products keep 16 bits; gathers in FP8 move half the bytes.
// World:   the tiny device, with 4 FLOP a ns in FP8 and a launch of 7 ns.
#include "engine/virtual_time/fp8.h"

#include <gmock/gmock.h>

#include "engine/virtual_time/time_model.h"
#include "tests/support/tiny_profile.h"

namespace loom::virtual_time {
namespace {

constexpr std::int64_t kTokens = 32, kInputs = 64, kOutputs = 48;
constexpr std::int64_t kProduct = 2 * kTokens * kInputs * kOutputs / 4, kLaunch = 7;

HardwareProfile device(const char* recipe = "tensorwise") {
  HardwareProfile profile = test::tiny_profile();
  profile.launch.kernel_launch_ns = kLaunch;
  profile.matrix.fp8_flops_per_s = 8e9;
  profile.matrix.fp8_efficiency = 0.5;
  profile.fp8 = {.recipe = *find_fp8_recipe(recipe)};
  return profile;
}

device::Cost product(std::int64_t m, std::int64_t n, std::int64_t k, DType dtype = DType::kBF16) {
  return {.flops = 2.0 * static_cast<double>(m * n * k),
          .unit = device::Unit::kMatrix,
          .dtype = dtype,
          .m = m,
          .n = n,
          .k = k};
}

struct Times {
  std::int64_t y = 0, dx = 0, dw = 0;
  bool operator==(const Times&) const = default;
};
void PrintTo(const Times& t, std::ostream* out) { *out << t.y << " " << t.dx << " " << t.dw; }

Times times_of(const HardwareProfile& profile) {
  const TimeModel model(profile);
  return {model.work_ns("linear", product(kTokens, kOutputs, kInputs)),
          model.work_ns("linear_dx", product(kTokens, kInputs, kOutputs)),
          model.work_ns("linear_dw", product(kOutputs, kInputs, kTokens))};
}

constexpr std::int64_t kX = kTokens * kInputs, kDy = kTokens * kOutputs, kW = kInputs * kOutputs;

TEST(Fp8, TakesProductsAndCastsByRecipe) {
  const std::int64_t with_casts = kProduct + 2 * kLaunch, alone = kProduct + kLaunch;
  const Times tensorwise{with_casts + 5 * kX + 5 * kW, with_casts + 5 * kDy + 5 * kW, with_casts + 5 * kX};
  EXPECT_EQ(times_of(device()), tensorwise);
  EXPECT_EQ(times_of(device("rowwise")), tensorwise);
  EXPECT_EQ(times_of(device("delayed")), (Times{with_casts + 4 * kX + 4 * kW, with_casts + 4 * kDy, alone}));
}

TEST(Fp8, SharesTheCastsOfOneTensor) {
  HardwareProfile shared = device();
  shared.fp8->casts[{kOutputs, kInputs}] = {.input = 0.25, .gradient = 0.5};
  const std::int64_t with_casts = kProduct + 2 * kLaunch;
  EXPECT_EQ(times_of(shared),
            (Times{with_casts + 5 * kX / 4 + 5 * kW, with_casts + 5 * kDy / 2 + 5 * kW, with_casts + 5 * kX / 4}));
}

TEST(Fp8, OfGatheredWeightsCastsThemBefore) {
  HardwareProfile gathered = device();
  gathered.fp8->gathers = true;
  gathered.fp8->gathered["model.layers.0"] = 0.5;
  const std::int64_t with_casts = kProduct + 2 * kLaunch;
  EXPECT_EQ(times_of(gathered), (Times{with_casts + 5 * kX, with_casts + 5 * kDy, with_casts + 5 * kX}));
  const TimeModel model(gathered);
  EXPECT_EQ(model.carried_bytes(device::CollectiveKind::kAllGather, 1000, "model.layers.0"), 500);
  EXPECT_EQ(model.carried_bytes(device::CollectiveKind::kReduceScatter, 1000, "model.layers.0"), 1000);
  EXPECT_EQ(model.carried_bytes(device::CollectiveKind::kAllGather, 1000, "model.embed_tokens"), 1000);
}

TEST(Fp8, IsOfLinearLayersWhoseSizesDivideBySixteen) {
  HardwareProfile eight_bits = device(), sixteen_bits = device();
  eight_bits.fp8->wide = {256};
  sixteen_bits.fp8.reset();
  const TimeModel model(eight_bits), plain(sixteen_bits);
  for (const auto& [kernel, cost] : {std::pair{"matmul", product(32, 48, 64)},
                                     {"linear", product(32, 40, 64)},
                                     {"linear", product(24, 48, 64)},
                                     {"linear", product(32, 48, 64, DType::kF32)},
                                     {"linear", product(32, 256, 64)},
                                     {"linear_dx", product(32, 64, 256)},
                                     {"linear_dw", product(256, 64, 32)}}) {
    EXPECT_EQ(model.work_ns(kernel, cost), plain.work_ns(kernel, cost)) << kernel << " " << cost.n;
  }
  EXPECT_LT(model.work_ns("linear", product(320, 640, 1024)), plain.work_ns("linear", product(320, 640, 1024)));
}

}  // namespace
}  // namespace loom::virtual_time
