#include "engine/cli/words/weight_flags.h"

#include <algorithm>
#include <array>

#include "engine/core/parse_number.h"

namespace loom::cli {

void add_dtype(Flags& flags, const std::string& names, std::optional<DType>& dtype) {
  flags.choice<std::optional<DType>>(
      names, dtype, {{"as-stored", std::nullopt}, {"fp32", DType::kF32}, {"bf16", DType::kBF16}, {"fp16", DType::kF16}},
      "Of floating tensors; rounded to nearest, ties to even");
}

std::uint64_t parse_size(const std::string& text) {
  static const std::array<std::pair<std::string_view, std::uint64_t>, 10> kUnits{{{"", 1},
                                                                                  {"B", 1},
                                                                                  {"KB", 1'000},
                                                                                  {"MB", 1'000'000},
                                                                                  {"GB", 1'000'000'000},
                                                                                  {"TB", 1'000'000'000'000},
                                                                                  {"KiB", 1ull << 10},
                                                                                  {"MiB", 1ull << 20},
                                                                                  {"GiB", 1ull << 30},
                                                                                  {"TiB", 1ull << 40}}};
  const std::size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  const auto number = parse_number<std::uint64_t>(text.substr(0, digits));
  const auto unit = std::ranges::find(kUnits, std::string_view(text).substr(digits),
                                      &std::pair<std::string_view, std::uint64_t>::first);
  std::uint64_t bytes = 0;
  if (!number || *number == 0 || unit == kUnits.end() || __builtin_mul_overflow(*number, unit->second, &bytes)) {
    config_error(
        "--shard-size is {}; use a whole number of bytes of at least 1, or one of KB, MB, GB, KiB, MiB, GiB: 5GB",
        shown_text(text));
  }
  return bytes;
}

void add_config_flag(Flags& flags) {
  flags.taken("--config", "FILE", "YAML file of these flags", [](const std::string&) {});
}

void need(const std::filesystem::path& value, const char* command, const char* flag, const char* what) {
  if (value.empty()) config_error("convert {}: {} is missing; give {}", command, flag, what);
}

}  // namespace loom::cli
