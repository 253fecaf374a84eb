#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "engine/core/parse_number.h"
#include "engine/core/shown_text.h"
#include "engine/launch/affinity.h"

namespace loom::launch {
namespace {

constexpr std::string_view kConfGrammar =
    "0 (off), 1 (all threads of a rank to its range) or 2 (each kind of thread to cores of its own), then as needed "
    ",npu<rank>:<first>-<last> ,npu_affine:<0|1> ,force:<0|1> ,lazy_bind:<0|1>, as in 1,npu0:0-3,npu1:4-7";
constexpr std::string_view kBindCoreGrammar =
    R"(True, False, or a JSON map of ranges as {"device0": ["0-9"], "device1": ["10-19"]})";
constexpr int kMostCores = 1 << 16;
constexpr int kMostRanks = 1 << 16;

std::optional<int> small_number(std::string_view text, int below) {
  const auto number = parse_number<int>(text);
  return number && text.front() != '-' && *number < below ? number : std::nullopt;
}

// "4-7"
std::optional<std::vector<int>> core_range(std::string_view text) {
  const std::size_t dash = text.find('-');
  if (dash == std::string_view::npos) return std::nullopt;
  const auto first = small_number(text.substr(0, dash), kMostCores);
  const auto last = small_number(text.substr(dash + 1), kMostCores);
  if (!first || !last || *first > *last) return std::nullopt;
  std::vector<int> cores;
  for (int core = *first; core <= *last; ++core) cores.push_back(core);
  return cores;
}

void add_cores(std::vector<int>& cores, const std::vector<int>& more) {
  cores.insert(cores.end(), more.begin(), more.end());
  std::ranges::sort(cores);
  cores.erase(std::ranges::unique(cores).begin(), cores.end());
}

// One reading of the text of CPU_AFFINITY_CONF.
class ConfReader {
 public:
  explicit ConfReader(std::string_view text) : text_(text) {}

  AffinityRequest read() {
    if (text_.empty()) return request_;
    std::size_t begin = 0;
    for (bool first = true; begin <= text_.size(); first = false) {
      const std::size_t end = std::min(text_.find(',', begin), text_.size());
      const std::string_view part = text_.substr(begin, end - begin);
      if (first) {
        take_mode(part);
      } else {
        take(part);
      }
      begin = end + 1;
    }
    return request_;
  }

 private:
  [[noreturn]] void refuse(std::string_view part) const {
    const std::string where = part == text_ ? "" : fmt::format(", in which {} is not known", shown_text(part));
    config_error("CPU_AFFINITY_CONF is {}{}; use {}", shown_text(text_), where, kConfGrammar);
  }

  void take_mode(std::string_view part) {
    const std::string_view word = part.starts_with("mode:") ? part.substr(5) : part;
    const auto mode = small_number(word, 3);
    if (!mode) refuse(part);
    request_.mode = static_cast<AffinityMode>(*mode);
  }

  void take(std::string_view part) {
    const std::size_t colon = part.find(':');
    if (colon == std::string_view::npos) refuse(part);
    const std::string_view name = part.substr(0, colon), value = part.substr(colon + 1);
    if (name == "npu_affine") {
      request_.npu_affine = take_switch(part, value);
    } else if (name == "force") {
      request_.force = take_switch(part, value);
    } else if (name == "lazy_bind") {
      take_switch(part, value);
    } else {
      take_range(part, name, value);
    }
  }

  bool take_switch(std::string_view part, std::string_view value) const {
    const auto on = small_number(value, 2);
    if (!on) refuse(part);
    return *on == 1;
  }

  void take_range(std::string_view part, std::string_view name, std::string_view value) {
    if (!name.starts_with("npu")) refuse(part);
    const auto rank = small_number(name.substr(3), kMostRanks);
    const auto cores = core_range(value);
    if (!rank || !cores) refuse(part);
    add_cores(request_.cores_of_rank[*rank], *cores);
  }

  const std::string_view text_;
  AffinityRequest request_;
};

[[noreturn]] void refuse_bind_core(std::string_view text, const std::string& where = {}) {
  config_error("--bind-core is {}{}; use {}", shown_text(text), where, kBindCoreGrammar);
}

// The ranges of one device of --bind-core.
std::vector<int> cores_of_key(std::string_view text, const std::string& key, const nlohmann::json& ranges) {
  std::vector<int> cores;
  const bool is_list = ranges.is_array() && !ranges.empty();
  if (!is_list) refuse_bind_core(text, fmt::format(", where {} has no list of ranges", shown_text(key)));
  for (const nlohmann::json& range : ranges) {
    const auto read = range.is_string() ? core_range(range.get<std::string>()) : std::nullopt;
    if (!read) {
      refuse_bind_core(text, fmt::format(", where {} of {} is not a range", shown_text(range.dump()), shown_text(key)));
    }
    add_cores(cores, *read);
  }
  return cores;
}

AffinityRequest parse_core_map(std::string_view text) {
  const nlohmann::json map = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!map.is_object()) refuse_bind_core(text);
  AffinityRequest request{.mode = AffinityMode::kRange, .origin = "--bind-core"};
  for (const auto& [key, ranges] : map.items()) {
    const auto rank =
        key.starts_with("device") ? small_number(std::string_view(key).substr(6), kMostRanks) : std::nullopt;
    if (!rank && key != "scheduler")
      refuse_bind_core(text, fmt::format(", whose key {} is not a device", shown_text(key)));
    std::vector<int> cores = cores_of_key(text, key, ranges);
    if (rank) request.cores_of_rank[*rank] = std::move(cores);
  }
  return request;
}

}  // namespace

AffinityRequest parse_affinity_conf(std::string_view text) { return ConfReader(text).read(); }

AffinityRequest parse_bind_core(std::string_view text) {
  if (text == "True" || text == "true") return {.mode = AffinityMode::kRange, .origin = "--bind-core"};
  if (text == "False" || text == "false" || text.empty()) return {.origin = "--bind-core"};
  return parse_core_map(text);
}

}  // namespace loom::launch
