#include "engine/core/processor_level.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"

namespace loom {
namespace {

ProcessorLevel level_of_processor() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool has_v4 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  if (!has_v4) return ProcessorLevel::kV3;
  return __builtin_cpu_supports("avx512bf16") ? ProcessorLevel::kAvx512Bf16 : ProcessorLevel::kAvx512;
#else
  return ProcessorLevel::kV3;
#endif
}

// SHARDLOOM_PROCESSOR, and none if it has a value that does not exist.
std::optional<ProcessorLevel> most_allowed() {
  const char* const text = std::getenv("SHARDLOOM_PROCESSOR");
  if (text == nullptr) return ProcessorLevel::kAvx512Bf16;
  const std::string_view value = text;
  if (value == "x86-64-v3") return ProcessorLevel::kV3;
  if (value == "x86-64-v4") return ProcessorLevel::kAvx512;
  return std::nullopt;
}

}  // namespace

// Read by the entries of kernels (cmake/processor_entries.sh). Zero, which every processor can run, until it is
// initialised.
extern "C" {
int loom_processor_level =
    static_cast<int>(std::min(level_of_processor(), most_allowed().value_or(ProcessorLevel::kV3)));
}

ProcessorLevel processor_level() { return static_cast<ProcessorLevel>(loom_processor_level); }

void check_processor_variable() {
  if (most_allowed()) return;
  config_error("SHARDLOOM_PROCESSOR is {}; write x86-64-v3 or x86-64-v4, or unset it",
               shown_text(std::getenv("SHARDLOOM_PROCESSOR")));
}

}  // namespace loom
