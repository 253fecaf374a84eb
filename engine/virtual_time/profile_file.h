// Device profiles as files: configs/devices/*.yaml into a HardwareProfile, checked once.
//
// Keys      a section for each struct of profile.h and a key for each of its figures, by the same names; every figure
//           is required, there are no defaults (the section `measured` and relative rates may be left out). `source`,
//           in every section, names the origin of its figures. An example with a comment at every key:
//           configs/devices/h200.yaml.
// Figures   plain numbers, 989.4e12 or 150754820096; counts, bytes and ns are whole, shares lie in 0..1. Rates begin
//           at 1e6 per second, fixed times end at 1e9 ns: virtual time would leave its range otherwise.
// Levels    of links: from the nearest to the farthest; each but the last gives the number of `devices` of a domain, a
//           multiple of the level before; the last joins all devices. host.numa_node_of_device has an entry for each
//           device of a host, which is a domain of one of the levels.
// Errors    ConfigError "file:line:column: key is VALUE; use ...": unknown, repeated and missing keys, wrong types,
//           impossible figures, YAML that cannot be read.
// Source    the structure is this project's; each file names the source of its figures.
#pragma once

#include <filesystem>
#include <string_view>

#include "engine/virtual_time/profile.h"

namespace loom::virtual_time {

// Reads `path`; messages carry the path as it is given here.
HardwareProfile load_profile(const std::filesystem::path& path);
// Reads `text`; messages call it `file_name`.
HardwareProfile parse_profile(std::string_view text, std::string_view file_name);

}  // namespace loom::virtual_time
