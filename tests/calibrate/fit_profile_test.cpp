// Promise: kernels that a profile has made give its figures back, the same bytes every time; a fit changes what was
//          measured, and its file is read back.
// World:   times that the time model of a made-up device predicts, fitted from the H200's profile in a few steps.
#include "engine/calibrate/fit_profile.h"

#include <cmath>
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "engine/calibrate/calibration_text.h"
#include "engine/core/error.h"
#include "engine/core/wrapped.h"
#include "engine/virtual_time/profile_file.h"

namespace loom::calibrate {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;
using virtual_time::HardwareProfile;

constexpr FitOptions kFew{.steps = 2000};

HardwareProfile base() {
  return virtual_time::load_profile(std::filesystem::path(LOOM_SOURCE_DIR) / "configs/devices/h200.yaml");
}

std::vector<KernelTime> parsed(const std::string& rows) { return parse_kernel_times("[" + rows + "]", "times.json"); }

// The kernels with the times that `profile` predicts.
std::vector<KernelTime> timed_by(const HardwareProfile& profile, std::vector<KernelTime> rows) {
  const virtual_time::TimeModel model(profile);
  for (KernelTime& row : rows) row.measured_ns = row.predicted_ns(model);
  return rows;
}

const char* const kCopies =
    R"({"op": "copy_bf16", "n": 67108864, "ms": 1}, {"op": "copy_bf16", "n": 268435456, "ms": 1},)"
    R"({"op": "cast_bf16_fp32", "n": 67108864, "ms": 1}, {"op": "cast_bf16_fp32", "n": 268435456, "ms": 1})";

const char* const kProducts = R"({"op": "matmul_nt", "M": 2048, "N": 4096, "K": 4096, "ms": 1},)"
                              R"({"op": "matmul_nt", "M": 8192, "N": 4096, "K": 4096, "ms": 1},)"
                              R"({"op": "matmul_nn_dx", "M": 4096, "N": 4096, "K": 2048, "ms": 1},)"
                              R"({"op": "matmul_tn_dw", "M": 8192, "N": 2048, "K": 2048, "ms": 1})";

TEST(FitProfile, FindsTheFiguresThatMadeTheTimes) {
  HardwareProfile made = base();
  made.measured = {};
  made.memory.streaming_efficiency = 0.7;
  made.launch.dispatch_ns = 8000;
  made.vector.relative_rate["cast"] = 0.4;
  const FittedProfile fitted = fit_profile(base(), timed_by(made, parsed(kCopies)), kFew);
  EXPECT_NEAR(fitted.profile.memory.streaming_efficiency, 0.7, 0.01);
  EXPECT_NEAR(fitted.profile.vector.relative_rate.at("cast"), 0.4, 0.01);
  EXPECT_LT(fitted.with_own_point.worst, 0.01);
}

TEST(FitProfile, LeavesWhatWasNotMeasured) {
  const FittedProfile fitted = fit_profile(base(), parsed(kCopies), kFew);
  EXPECT_EQ(fitted.profile.matrix.efficiency, base().matrix.efficiency);
  EXPECT_EQ(fitted.profile.attention.backward.efficiency, base().attention.backward.efficiency);
  EXPECT_EQ(fitted.profile.launch.library_ns, base().launch.library_ns);
  EXPECT_THAT(fitted.profile.measured.products, IsEmpty());
  EXPECT_THAT(fitted.rows, SizeIs(4));
}

TEST(FitProfile, GivesTheSameBytesEveryTime) {
  const auto text = [] {
    const FittedProfile fitted = fit_profile(base(), parsed(std::string(kCopies) + "," + kProducts), kFew);
    return profile_file_text(fitted, "times.json", "h200") + to_text(fitted) + to_json(fitted).dump();
  };
  EXPECT_EQ(text(), text());
}

TEST(FitProfile, AMeasuredProductIsPredictedNearlyByItself) {
  HardwareProfile made = base();
  made.measured = {};
  made.matrix.efficiency = 0.6;
  const FittedProfile fitted = fit_profile(base(), timed_by(made, parsed(kProducts)), kFew);
  EXPECT_THAT(fitted.profile.measured.products, SizeIs(4));
  EXPECT_LT(fitted.with_own_point.worst, 0.02);
  EXPECT_GE(fitted.without_own_point.worst, fitted.with_own_point.worst);
}

TEST(FitProfile, TheLinkToTheHostIsThatOfTheLongestCopy) {
  const FittedProfile fitted = fit_profile(
      base(),
      parsed(R"({"op": "h2d_pinned", "n": 1000000, "ms": 0.06}, {"op": "h2d_pinned", "n": 40000000, "ms": 1.01})"),
      kFew);
  EXPECT_EQ(fitted.profile.host_link.h2d_pinned_bytes_per_s, 40e9);  // 40 MB in 1.01 ms less the latency, 10 us
  EXPECT_EQ(fitted.profile.host_link.d2h_pinned_bytes_per_s, base().host_link.d2h_pinned_bytes_per_s);
}

TEST(FitProfile, ShortRowsAreLeftOut) {
  const auto rows =
      parsed(R"({"op": "copy_bf16", "n": 1, "ms": 0.04}, {"op": "copy_bf16", "n": 268435456, "ms": 0.27})");
  EXPECT_EQ(fit_profile(base(), rows, kFew).left_out, 1);
  EXPECT_EQ(fit_profile(base(), rows, {.least_ns = 0, .steps = 10}).left_out, 0);
  try {
    fit_profile(base(), {rows.front()}, kFew);
    FAIL() << "fitted to nothing";
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(),
                 "none of the 1 kernels took 44 us or longer, and shorter ones time the host; measure larger sizes");
  }
}

TEST(FitProfile, AProfileWithoutThePeakOfADtypeIsRefused) {
  HardwareProfile without = base();
  without.matrix.peak_flops_per_s.erase(DType::kF16);
  try {
    fit_profile(without, parsed(R"({"op": "matmul_nt", "M": 1, "N": 1, "K": 1, "ms": 1, "dtype": "fp16"})"), kFew);
    FAIL() << "fitted without a peak";
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(),
                 "matmul_nt M 1 N 1 K 1 is of fp16, and profile 'h200' has no peak_flops_per_s for it; add it to its "
                 "matrix section");
  }
}

TEST(FitProfile, ItsFileIsReadBackDigitByDigit) {
  const FittedProfile fitted = fit_profile(base(), parsed(std::string(kCopies) + "," + kProducts), kFew);
  const std::string text = profile_file_text(fitted, "ti\"m\\es.json", "h200");
  EXPECT_THAT(text,
              StartsWith("# Calibrated by shardloom calibrate on 8 kernels of ti\"m\\es.json, from profile h200.\n"));
  const HardwareProfile read = virtual_time::parse_profile(text, "mine.yaml");
  EXPECT_EQ(read.matrix.efficiency, fitted.profile.matrix.efficiency);
  EXPECT_EQ(read.memory.streaming_efficiency, fitted.profile.memory.streaming_efficiency);
  EXPECT_EQ(read.measured.products.size(), fitted.profile.measured.products.size());
  EXPECT_EQ(read.measured.weight, fitted.profile.measured.weight);
  EXPECT_EQ(read.launch.dispatch_ns, fitted.profile.launch.dispatch_ns);
}

TEST(FitProfile, ItsTextHasItsColumnsAndEveryRow) {
  const FittedProfile fitted = fit_profile(base(), parsed(std::string(kCopies) + "," + kProducts), kFew);
  std::istringstream text(to_text(fitted));
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  EXPECT_THAT(lines, Each(SizeIs(::testing::Le(kTextColumns))));
  EXPECT_THAT(to_text(fitted), HasSubstr("matmul_tn_dw M 8192 N 2048 K 2048"));
  EXPECT_THAT(to_json(fitted).at("rows"), SizeIs(8));
  EXPECT_THAT(to_json(fitted).at("figures"), Not(IsEmpty()));
}

}  // namespace
}  // namespace loom::calibrate
