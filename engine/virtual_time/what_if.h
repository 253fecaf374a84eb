// What if a figure of a device were another: a row of a table scales the figures of a HardwareProfile that go together.
//
// Factor    multiplies the figures: of a rate or a size, above 1 is more; of a time, above 1 is slower.
// Measured  kernels keep their relation to the formulas: those of matrix products and attention are scaled with them.
// Errors    ConfigError "--what-if is ...; use ...", with the nearest names.
// Threads   safe from any number of threads.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/virtual_time/profile.h"

namespace loom::virtual_time {

struct WhatIf {
  std::string figure;  // "links", "links.node"
  double factor = 1;   // 0.001 to 1000
};

// "links=0.7": a row of the table and a factor. Levels of links are known only to a profile; scaled() checks them.
WhatIf read_what_if(const std::string& word);

// "bandwidth of every level of links".
std::string about(const WhatIf& what_if);

// Every name of the table, for help and completion.
std::vector<std::string> what_if_names();

// The profile with these figures scaled, one after the other. ConfigError if a level of links or the host's memory is
// not in the profile, or if the driver's memory would leave the allocator none.
HardwareProfile scaled(HardwareProfile profile, std::span<const WhatIf> what_if);

}  // namespace loom::virtual_time
