// Figures for people: bytes, times and counts in a unit that fits their size.
//
// Unit     a table has one unit for all its figures, chosen by the largest of them (unit_of_...); a sentence has one
//          for each figure (..._text).
// Figures  a value that is not zero never shows as zero: "<0.01".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace loom {

struct Unit {
  std::string_view name;
  double size = 1;  // how many bytes, ns or things it is
  int decimals = 0;
};

Unit unit_of_bytes(std::int64_t largest);    // bytes, KiB, MiB, GiB
Unit unit_of_time(std::int64_t largest_ns);  // ns, us, ms, s
Unit unit_of_count(std::int64_t largest);    // no name, K, M, G

std::string figure(double value, int decimals);
std::string figure(std::int64_t value, const Unit& unit);  // without the unit's name

std::string memory_text(std::int64_t bytes);  // "1.50 MiB"
std::string time_text(std::int64_t ns);       // "1.50 ms"
std::string count_text(std::int64_t count);   // "7.616 G"

// For texts whose unit is fixed, such as a flag's.
constexpr double mib(std::int64_t bytes) { return static_cast<double>(bytes) / (1024.0 * 1024.0); }
constexpr double gib(std::int64_t bytes) { return static_cast<double>(bytes) / (1024.0 * 1024.0 * 1024.0); }

}  // namespace loom
