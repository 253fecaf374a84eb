// Promise: the figures that configs/devices/h200.yaml calls fitted are what a fit to the measured kernels gives.
// World:   tests/reference/memory/h200_kernel_times.json, the whole fit.
#include <gmock/gmock.h>

#include "engine/calibrate/fit_profile.h"
#include "engine/virtual_time/profile_file.h"

namespace loom::calibrate {
namespace {

const std::filesystem::path kRoot = LOOM_SOURCE_DIR;

TEST(H200Fit, GivesTheFiguresOfTheShippedProfile) {
  const auto shipped = virtual_time::load_profile(kRoot / "configs/devices/h200.yaml");
  const FittedProfile fitted =
      fit_profile(shipped, read_kernel_times(kRoot / "tests/reference/memory/h200_kernel_times.json"));
  for (const FittedFigure& figure : fitted.figures) {
    // The rates of the host's link, which stand in the profile without being called fitted, differ in the fourth digit.
    const bool host = figure.name.starts_with("host_link.");
    EXPECT_NEAR(figure.fitted, figure.base, host ? 5e-4 * figure.base : 0) << figure.name;
  }
  const auto &now = fitted.profile.measured, &then = shipped.measured;
  ASSERT_EQ(now.products.size(), then.products.size());
  for (std::size_t i = 0; i < now.products.size(); ++i) {
    EXPECT_EQ(now.products[i].time_ns, then.products[i].time_ns) << i;
    EXPECT_EQ(now.products[i].m, then.products[i].m) << i;
  }
  ASSERT_EQ(now.attention.size(), then.attention.size());
  for (std::size_t i = 0; i < now.attention.size(); ++i) EXPECT_EQ(now.attention[i].time_ns, then.attention[i].time_ns);
}

}  // namespace
}  // namespace loom::calibrate
