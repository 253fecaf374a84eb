// Promise: a name of --what-if scales its figures and no others; measured kernels go with the formula they correct;
//          what it does not know is refused with the nearest name.
// World:   the H200's profile.
#include "engine/virtual_time/what_if.h"

#include <gmock/gmock.h>

#include "engine/core/error.h"
#include "engine/virtual_time/profile_file.h"
#include "engine/virtual_time/profile_text.h"
#include "engine/virtual_time/time_model.h"

namespace loom::virtual_time {
namespace {

using ::testing::HasSubstr;
using ::testing::StrEq;

HardwareProfile h200() { return load_profile(std::filesystem::path(LOOM_SOURCE_DIR) / "configs/devices/h200.yaml"); }

HardwareProfile with(const std::string& word, HardwareProfile profile = h200()) {
  const std::vector<WhatIf> what_if{read_what_if(word)};
  return scaled(std::move(profile), what_if);
}

std::string refusal(const std::string& word, HardwareProfile profile = h200()) {
  try {
    with(word, std::move(profile));
  } catch (const ConfigError& error) {
    return error.what();
  }
  ADD_FAILURE() << "taken: " << word;
  return {};
}

// Lines of the profile's text that differ.
std::size_t changed_lines(const HardwareProfile& a, const HardwareProfile& b) {
  const std::string text_a = profile_text(a, {}, ""), text_b = profile_text(b, {}, "");
  std::istringstream lines_a(text_a), lines_b(text_b);
  std::size_t changed = 0;
  for (std::string x, y; std::getline(lines_a, x) && std::getline(lines_b, y);) changed += x != y ? 1 : 0;
  return changed;
}

TEST(WhatIf, ScalesTheLinksOfAllLevelsOrOfOne) {
  const HardwareProfile all = with("links=0.5");
  EXPECT_EQ(all.links.levels[0].bandwidth_bytes_per_s, 225e9);
  EXPECT_EQ(all.links.levels[1].bandwidth_bytes_per_s, 25e9);
  const HardwareProfile one = with("links.cluster=2");
  EXPECT_EQ(one.links.levels[0].bandwidth_bytes_per_s, 450e9);
  EXPECT_EQ(one.links.levels[1].bandwidth_bytes_per_s, 100e9);
}

TEST(WhatIf, ScalesNoOtherFigures) {
  const std::size_t points = h200().measured.attention.size(), all_points = points + h200().measured.products.size();
  const std::vector<std::pair<std::string, std::size_t>> lines{{"links", 2},
                                                               {"link_latency", 3},
                                                               {"memory", 1},
                                                               {"bandwidth", 1},
                                                               {"vector", 1},
                                                               {"kernel_launch", 1},
                                                               {"dispatch", 4},
                                                               {"host", 2},
                                                               {"host_memory", 1},
                                                               {"host_link", 4},
                                                               {"matrix", 2 + all_points},
                                                               {"attention", 2 + points}};
  ASSERT_EQ(lines.size() + 1, what_if_names().size());  // and links.LEVEL
  for (const auto& [name, count] : lines) EXPECT_EQ(changed_lines(h200(), with(name + "=2")), count) << name;
}

TEST(WhatIf, MeasuredKernelsGoWithTheirFormula) {
  const device::Cost product{.flops = 2.0 * 8192 * 4096 * 4096,
                             .unit = device::Unit::kMatrix,
                             .dtype = DType::kBF16,
                             .m = 8192,
                             .n = 4096,
                             .k = 4096};
  const std::int64_t launch = h200().launch.kernel_launch_ns;
  const auto work = [&](const HardwareProfile& profile) {
    return static_cast<double>(TimeModel(profile).work_ns("linear", product) - launch);
  };
  EXPECT_NEAR(work(with("matrix=0.5")), 2 * work(h200()), 2);
  EXPECT_EQ(work(with("attention=0.5")), work(h200()));
}

TEST(WhatIf, OfAnUnknownNameIsRefused) {
  EXPECT_THAT(refusal("link=0.7"), HasSubstr("--what-if names link, which is no figure that it scales; "
                                             "did you mean links? use one of links, links.LEVEL, "));
  EXPECT_THAT(
      refusal("links.rack=0.7"),
      StrEq("--what-if names links.rack, which is no figure that it scales; use one of links.node, links.cluster, "
            "links"));
  EXPECT_EQ(refusal("links"), "--what-if is links; use a figure and its factor, as links=0.7");
}

TEST(WhatIf, OfAnImpossibleFactorIsRefused) {
  for (const char* factor : {"0", "-1", "nan", "inf", "2000", "", "x"}) {
    EXPECT_THAT(refusal("links=" + std::string(factor)), HasSubstr("; use a factor from 0.001 to 1000"));
  }
  EXPECT_EQ(refusal("memory=0.005"),
            "--what-if leaves profile 'h200' 753774100 bytes of memory, of which driver and libraries take 889192448; "
            "use a larger factor");
  HardwareProfile unknown = h200();
  unknown.host.memory_bytes = 0;
  EXPECT_EQ(refusal("host_memory=2", unknown),
            "--what-if scales host_memory, and profile 'h200' has no host.memory_bytes; add it there");
}

TEST(ProfileText, OfEveryShippedProfileIsReadBack) {
  for (const auto& entry :
       std::filesystem::directory_iterator(std::filesystem::path(LOOM_SOURCE_DIR) / "configs/devices")) {
    const HardwareProfile profile = load_profile(entry.path());
    const ProfileSources sources{"a", "b", "c", "d", "e", "f", "g", "h: \"i\"", "j", "k"};
    const std::string text = profile_text(profile, sources, "A comment.\n\nIts end.");
    EXPECT_EQ(profile_text(parse_profile(text, "again.yaml"), sources, "A comment.\n\nIts end."), text) << entry.path();
  }
}

}  // namespace
}  // namespace loom::virtual_time
