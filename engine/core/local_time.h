// A moment as messages and logs have it: "2026-01-31 12:00:00", in the local time zone.
#pragma once

#include <array>
#include <ctime>
#include <string>

namespace loom {

inline std::string local_time_text(std::time_t seconds) {
  std::tm parts{};
  ::localtime_r(&seconds, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S", &parts);
  return text.data();
}

}  // namespace loom
