#include "engine/core/units.h"

#include <array>
#include <cmath>
#include <fmt/core.h>
#include <span>

namespace loom {
namespace {

constexpr std::array kBytes{Unit{"GiB", 0x1p30, 2}, Unit{"MiB", 0x1p20, 2}, Unit{"KiB", 0x1p10, 2}, Unit{"bytes"}};
constexpr std::array kTimes{Unit{"s", 1e9, 3}, Unit{"ms", 1e6, 2}, Unit{"us", 1e3, 2}, Unit{"ns"}};
constexpr std::array kCounts{Unit{"G", 1e9, 3}, Unit{"M", 1e6, 3}, Unit{"K", 1e3, 3}, Unit{""}};

// The largest unit that is not larger than the value. `units` are in descending order.
Unit fitting(std::span<const Unit> units, std::int64_t largest) {
  const double size = std::abs(static_cast<double>(largest));
  for (const Unit& unit : units) {
    if (size >= unit.size) return unit;
  }
  return units.back();
}

std::string with_name(std::int64_t value, const Unit& unit) {
  return figure(value, unit) + (unit.name.empty() ? "" : " ") + std::string(unit.name);
}

}  // namespace

Unit unit_of_bytes(std::int64_t largest) { return fitting(kBytes, largest); }
Unit unit_of_time(std::int64_t largest_ns) { return fitting(kTimes, largest_ns); }
Unit unit_of_count(std::int64_t largest) { return fitting(kCounts, largest); }

std::string figure(double value, int decimals) {
  const std::string text = fmt::format("{:.{}f}", value, decimals);
  if (value == 0 || text.find_first_not_of("-0.") != std::string::npos) return text;
  return fmt::format("{}{:.{}f}", value > 0 ? "<" : ">-", std::pow(10.0, -decimals), decimals);
}

std::string figure(std::int64_t value, const Unit& unit) {
  return figure(static_cast<double>(value) / unit.size, unit.decimals);
}

std::string memory_text(std::int64_t bytes) { return with_name(bytes, unit_of_bytes(bytes)); }
std::string time_text(std::int64_t ns) { return with_name(ns, unit_of_time(ns)); }
std::string count_text(std::int64_t count) { return with_name(count, unit_of_count(count)); }

}  // namespace loom
