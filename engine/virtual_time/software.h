// Software: a release of the training software beside a device, as data: configs/software/*.yaml. The figures of a
// profile stand for the software that the profile names; another one scales them.
//
// File      name; source; fused: the kernels that are one there (rmsnorm, swiglu, rope, cross_entropy); rates: for each
//           architecture the rates of matrix products and of attention and the host's cost of dispatch, each against
//           those of the reference release, which has 1 everywhere. task_queue: the host's cost of dispatch at
//           TASK_QUEUE_ENABLE=0, 1 and 2, against that at its default (on NPUs alone).
// Scaled    matrix.efficiency, matrix.fp8_efficiency and both curves of attention, the times of measured kernels, and
//           the figures of launch that the host pays, by the ratio of the chosen software's rates to those of the
//           profile's own.
// Errors    ConfigError: an unknown name with the names that exist; a file that does not fit this, by file, line and
//           key; an architecture without rates; a TASK_QUEUE_ENABLE that is not 0, 1 or 2.
// Source    each row names its own.
#pragma once

#include <array>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/virtual_time/profile.h"

namespace loom::virtual_time {

struct SoftwareRates {
  std::string architecture;
  double matrix = 1;
  double attention_forward = 1;
  double attention_backward = 1;
  double dispatch = 1;  // cost, not rate: more is slower
};

struct Software {
  std::string name;
  std::vector<std::string> fused{};
  std::vector<SoftwareRates> rates{};
  std::optional<std::array<double, 3>> task_queue{};

  bool fuses(std::string_view kernel) const;
};

// Of a file, or a name in configs/software ($SHARDLOOM_SOFTWARE names another folder).
std::filesystem::path find_software_file(const std::string& software);
Software find_software(const std::string& software);
// Reads `text`; messages call it `file_name`.
Software parse_software(std::string_view text, std::string_view file_name);

// `profile` as `chosen` runs on it. `task_queue`: the value of TASK_QUEUE_ENABLE; null if it is not set.
HardwareProfile with_software(HardwareProfile profile, const Software& own, const Software& chosen,
                              const char* task_queue = nullptr);

}  // namespace loom::virtual_time
