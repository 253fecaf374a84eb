// Promise: a release of the training software scales the figures of a device by its rates against the profile's own
//          software, and nothing else; files that do not fit are refused with their place.
// World:   the tiny device, software of ours; the shipped files.
#include "engine/virtual_time/software.h"

#include <gmock/gmock.h>
#include <set>

#include "engine/core/error.h"
#include "engine/virtual_time/profile_file.h"
#include "tests/support/tiny_profile.h"

namespace loom::virtual_time {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StrEq;
using ::testing::ThrowsMessage;

const std::filesystem::path kConfigs = std::filesystem::path(LOOM_SOURCE_DIR) / "configs";

HardwareProfile device() {
  HardwareProfile profile = test::tiny_profile();
  profile.architecture = "tiny";
  profile.software = "old";
  profile.matrix.efficiency = 0.5;
  profile.attention.forward.efficiency = 0.4;
  profile.attention.backward.efficiency = 0.3;
  profile.measured.products = {{"linear", DType::kBF16, 8, 8, 8, 1000}};
  profile.measured.attention = {{"attention", DType::kBF16, 4, 16, 8, 100},
                                {"attention_grad", DType::kBF16, 4, 16, 8, 300}};
  profile.launch = {
      .kernel_launch_ns = 7, .dispatch_ns = 1000, .library_ns = 2000, .collective_ns = 4000, .stream_wait_ns = 500};
  return profile;
}

const Software kOld{.name = "old",
                    .rates = {{.architecture = "tiny", .matrix = 0.8, .attention_forward = 0.5, .dispatch = 2}}};
const Software kNew{
    .name = "new", .fused = {"rmsnorm"}, .rates = {{.architecture = "tiny"}}, .task_queue = {{2, 1, 0.5}}};

TEST(Software, ScalesByTheRatioOfItsRatesToThoseOfTheProfile) {
  const HardwareProfile scaled = with_software(device(), kOld, kNew);
  EXPECT_EQ(scaled.software, "new");
  EXPECT_DOUBLE_EQ(scaled.matrix.efficiency, 0.5 / 0.8);
  EXPECT_DOUBLE_EQ(scaled.attention.forward.efficiency, 0.8);
  EXPECT_DOUBLE_EQ(scaled.attention.backward.efficiency, 0.3);
  EXPECT_DOUBLE_EQ(scaled.measured.products[0].time_ns, 800);
  EXPECT_DOUBLE_EQ(scaled.measured.attention[0].time_ns, 50);
  EXPECT_DOUBLE_EQ(scaled.measured.attention[1].time_ns, 300);
  EXPECT_EQ(scaled.launch.dispatch_ns, 500);
  EXPECT_EQ(scaled.launch.library_ns, 1000);
  EXPECT_EQ(scaled.launch.collective_ns, 2000);
  EXPECT_EQ(scaled.launch.stream_wait_ns, 250);
  EXPECT_EQ(scaled.launch.kernel_launch_ns, 7) << "the device's own";
}

TEST(Software, OfTheProfileItselfChangesNothing) {
  const HardwareProfile same = with_software(device(), kOld, kOld);
  EXPECT_EQ(same.matrix.efficiency, 0.5);
  EXPECT_EQ(same.launch.dispatch_ns, 1000);
  EXPECT_EQ(same.measured.products[0].time_ns, 1000);
}

TEST(Software, TaskQueueEnableChangesTheCostOfDispatch) {
  EXPECT_EQ(with_software(device(), kOld, kNew, "0").launch.dispatch_ns, 1000);
  EXPECT_EQ(with_software(device(), kOld, kNew, "1").launch.dispatch_ns, 500);
  EXPECT_EQ(with_software(device(), kOld, kNew, "2").launch.dispatch_ns, 250);
  EXPECT_EQ(with_software(device(), kOld, kNew, "").launch.dispatch_ns, 500);
  EXPECT_EQ(with_software(device(), kOld, kOld, "2").launch.dispatch_ns, 1000) << "a GPU has no such queue";
  EXPECT_THAT([] { with_software(device(), kOld, kNew, "3"); },
              ThrowsMessage<ConfigError>(StrEq("TASK_QUEUE_ENABLE is 3 in the environment; use 0, 1 or 2")));
}

TEST(Software, WithoutRatesForTheArchitectureIsRefused) {
  HardwareProfile other = device();
  other.architecture = "huge";
  EXPECT_THAT([&] { with_software(other, kOld, kNew); },
              ThrowsMessage<ConfigError>(
                  StrEq("--software old: it has no rates for the architecture of device 'tiny', huge; it has those of "
                        "tiny. Add a row to its file, or leave --software out: the plan then assumes old")));
}

constexpr std::string_view kGood = R"(name: toy
source: made up
fused: [rmsnorm, rope]
rates:
  - {architecture: tiny, matrix: 0.5, attention_forward: 0.25, attention_backward: 2, dispatch: 3, source: made up}
task_queue: [2, 1, 0.5]
)";

TEST(SoftwareFile, IsReadWhole) {
  const Software toy = parse_software(kGood, "toy.yaml");
  EXPECT_EQ(toy.name, "toy");
  EXPECT_TRUE(toy.fuses("rope"));
  EXPECT_FALSE(toy.fuses("swiglu"));
  ASSERT_EQ(toy.rates.size(), 1u);
  EXPECT_EQ(toy.rates[0].matrix, 0.5);
  EXPECT_EQ(toy.rates[0].attention_forward, 0.25);
  EXPECT_EQ(toy.rates[0].attention_backward, 2);
  EXPECT_EQ(toy.rates[0].dispatch, 3);
  EXPECT_THAT(*toy.task_queue, ElementsAre(2, 1, 0.5));
}

void expect_refused(std::string_view from, std::string_view to, const std::string& text) {
  std::string file(kGood);
  file.replace(file.find(from), from.size(), to);
  EXPECT_THAT([&] { parse_software(file, "toy.yaml"); }, ThrowsMessage<ConfigError>(HasSubstr(text)));
}

TEST(SoftwareFile, ThatDoesNotFitIsRefusedWithItsPlace) {
  expect_refused("rmsnorm", "everything",
                 "toy.yaml:3:9: fused[0] is everything; use one of rmsnorm, swiglu, rope, cross_entropy");
  expect_refused("matrix: 0.5", "matrix: 0", "matrix is 0; use a factor from 0.01 to 100");
  expect_refused("[2, 1, 0.5]", "[2, 1]", "three factors, of TASK_QUEUE_ENABLE=0, 1, 2");
  expect_refused("dispatch: 3, ", "", "dispatch");
}

TEST(ShippedSoftware, IsKnownByEveryShippedDevice) {
  for (const auto& entry : std::filesystem::directory_iterator(kConfigs / "devices")) {
    const HardwareProfile profile = load_profile(entry.path());
    const Software own = find_software((kConfigs / "software" / (profile.software + ".yaml")).string());
    EXPECT_EQ(own.name, profile.software);
    EXPECT_EQ(with_software(profile, own, own).matrix.efficiency, profile.matrix.efficiency) << profile.name;
  }
}

TEST(ShippedSoftware, CarriesTheNamesOfItsFiles) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kConfigs / "software")) {
    const Software software = find_software(entry.path().string());
    EXPECT_EQ(software.name, entry.path().stem().string());
    names.insert(software.name);
  }
  EXPECT_THAT(names, ElementsAre("compile", "pytorch-2.0", "pytorch-2.11", "pytorch-2.3", "pytorch-2.6", "shardloom",
                                 "torch_npu-2.1"));
}

}  // namespace
}  // namespace loom::virtual_time
