// The name of this host, as gethostname() has it; "localhost" where it has none.
#pragma once

#include <unistd.h>

#include <array>
#include <string>

namespace loom {

inline std::string host_name() {
  std::array<char, 256> name{};
  const bool has_name = ::gethostname(name.data(), name.size() - 1) == 0 && name.front() != '\0';
  return has_name ? name.data() : "localhost";
}

}  // namespace loom
