#include "engine/device/allocator_settings.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <vector>

#include "engine/core/error.h"
#include "engine/core/parse_number.h"
#include "engine/core/shown_text.h"
#include "engine/core/spelling.h"

namespace loom::device {
namespace {

constexpr std::int64_t kMiB = 1 << 20;
constexpr std::int64_t kSmallestLimitMib = 20;  // a large segment

const std::vector<std::string> kWithoutEffect = {
    "backend",
    "release_lock_on_cudamalloc",
    "release_lock_on_hipmalloc",
    "pinned_use_cuda_host_register",
    "pinned_use_hip_host_register",
    "pinned_num_register_threads",
    "pinned_use_background_threads",
    "pinned_reserve_segment_size_mb",
    "graph_capture_record_stream_reuse",
};
const std::vector<std::string> kRead = {
    "expandable_segments",          "max_split_size_mb",
    "max_non_split_rounding_mb",    "roundup_power2_divisions",
    "garbage_collection_threshold", "per_process_memory_fraction",
};

struct Option {
  std::string name;
  std::string value;
};

std::string trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return std::string(text);
}

class Reader {
 public:
  Reader(std::string_view text, std::string_view where) : text_(text), where_(where) {}

  // "name:value,name:[a:b,c:d]"
  std::vector<Option> options() const {
    std::vector<Option> found;
    for (std::size_t at = 0; at < text_.size();) {
      int open = 0;
      std::size_t end = at;
      for (; end < text_.size() && (open > 0 || text_[end] != ','); ++end) {
        open += text_[end] == '[' ? 1 : text_[end] == ']' ? -1 : 0;
      }
      const std::string_view one = text_.substr(at, end - at);
      const std::size_t colon = one.find(':');
      if (colon == std::string_view::npos) refuse(one, "", "write name:value");
      found.push_back({trimmed(one.substr(0, colon)), trimmed(one.substr(colon + 1))});
      at = end + 1;
    }
    return found;
  }

  bool truth(const Option& option) const {
    if (option.value == "True") return true;
    if (option.value == "False") return false;
    refuse(option.name, option.value, "write True or False");
  }
  std::int64_t mib(const Option& option) const {
    const auto number = parse_number<std::int64_t>(option.value);
    if (!number || *number < kSmallestLimitMib || *number > (std::int64_t{1} << 40)) {
      refuse(option.name, option.value, fmt::format("write a number of MiB from {} on", kSmallestLimitMib));
    }
    return *number * kMiB;
  }
  double share(const Option& option, bool one_is_allowed) const {
    const auto value = parse_number<double>(option.value);
    const bool fits = value && *value > 0 && (one_is_allowed ? *value <= 1 : *value < 1);
    if (!fits) refuse(option.name, option.value, "write a number between 0 and 1");
    return *value;
  }
  void divisions(const Option& option, std::array<std::int64_t, AllocatorSettings::kIntervals>& of) const {
    if (!option.value.starts_with('[')) {
      of.fill(power_of_two(option, option.value));
      return;
    }
    if (!option.value.ends_with(']')) refuse(option.name, option.value, "close the list with ']'");
    std::string_view rest = std::string_view(option.value).substr(1, option.value.size() - 2);
    std::optional<std::size_t> last;
    while (!rest.empty()) {
      const std::size_t comma = std::min(rest.find(','), rest.size());
      last = interval(option, rest.substr(0, comma), last, of);
      rest.remove_prefix(std::min(rest.size(), comma + 1));
    }
  }
  [[noreturn]] void unknown(const std::string& name) const {
    std::vector<std::string> all = kRead;
    all.insert(all.end(), kWithoutEffect.begin(), kWithoutEffect.end());
    const auto near = nearest_spelling(name, all);
    refuse(name, "",
           near ? fmt::format("PyTorch has no such option; the nearest is {}", *near) : "PyTorch has no such option");
  }

 private:
  [[noreturn]] void refuse(std::string_view name, std::string_view value, std::string_view what) const {
    config_error("{}: '{}{}{}': {}", where_, escaped(name), value.empty() ? "" : ":", escaped(value), what);
  }
  std::int64_t power_of_two(const Option& option, std::string_view text) const {
    const auto number = parse_number<std::int64_t>(trimmed(text));
    if (!number || *number < 0 || (*number != 0 && !std::has_single_bit(static_cast<std::uint64_t>(*number)))) {
      refuse(option.name, option.value, "divisions and sizes are powers of two; 0 is off");
    }
    return *number;
  }
  // "256:1" or ">:4"; the index of its size.
  std::size_t interval(const Option& option, std::string_view text, std::optional<std::size_t> last,
                       std::array<std::int64_t, AllocatorSettings::kIntervals>& of) const {
    const std::size_t colon = text.find(':');
    if (colon == std::string_view::npos) refuse(option.name, option.value, "write [MiB:divisions,...]");
    const std::int64_t value = power_of_two(option, text.substr(colon + 1));
    const std::string size = trimmed(text.substr(0, colon));
    if (size == ">") {
      const std::size_t from = last.value_or(0) + 1;
      for (std::size_t i = from; i < of.size(); ++i) of[i] = value;
      return of.size() - 1;
    }
    const std::int64_t mib = power_of_two(option, size);
    if (mib == 0) refuse(option.name, option.value, "a size is 1 MiB or more");
    const auto index =
        std::min(of.size() - 1, static_cast<std::size_t>(std::countr_zero(static_cast<std::uint64_t>(mib))));
    if (!last) std::fill_n(of.begin(), index, value);
    of[index] = value;
    return index;
  }

  const std::string_view text_;
  const std::string_view where_;
};

}  // namespace

AllocatorSettings read_allocator_settings(std::string_view text, std::string_view where) {
  AllocatorSettings settings;
  const Reader reader(text, where);
  for (const Option& option : reader.options()) {
    if (option.name == "expandable_segments") {
      settings.expandable_segments = reader.truth(option);
    } else if (option.name == "max_split_size_mb") {
      settings.max_split_bytes = reader.mib(option);
    } else if (option.name == "max_non_split_rounding_mb") {
      settings.max_non_split_rounding_bytes = reader.mib(option);
    } else if (option.name == "garbage_collection_threshold") {
      settings.garbage_collection_threshold = reader.share(option, /*one_is_allowed=*/false);
    } else if (option.name == "per_process_memory_fraction") {
      settings.memory_fraction = reader.share(option, /*one_is_allowed=*/true);
    } else if (option.name == "roundup_power2_divisions") {
      reader.divisions(option, settings.power2_divisions);
    } else if (std::ranges::find(kWithoutEffect, option.name) == kWithoutEffect.end()) {
      reader.unknown(option.name);
    }
  }
  return settings;
}

}  // namespace loom::device
