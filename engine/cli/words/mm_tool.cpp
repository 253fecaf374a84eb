#include "engine/cli/words/mm_tool.h"

#include <algorithm>
#include <fmt/format.h>

#include "engine/config/document.h"
#include "engine/config/section.h"
#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/job/key.h"

namespace loom::cli {
namespace {

using config::Value;

constexpr std::string_view kDevice = "is of the profiler of another device";

constexpr MmToolKey kKeys[] = {
    {"profile.enable", "--profile"},
    {"profile.profile_type", "", "a profile that is started from outside is not built; write static", "static"},
    {"profile.ranks", "--profile-ranks"},
    {"profile.static_param.level", "--profile-level"},
    {"profile.static_param.with_stack", "--profile-with-stack"},
    {"profile.static_param.with_memory", "--profile-with-memory"},
    {"profile.static_param.record_shapes", "--profile-record-shapes"},
    {"profile.static_param.with_cpu", "--profile-with-cpu"},
    {"profile.static_param.save_path", "--profile-save-path"},
    {"profile.static_param.start_step", "--profile-step-start"},
    {"profile.static_param.end_step", "--profile-step-end"},
    {"profile.static_param.data_simplification", "", kDevice},
    {"profile.static_param.aic_metrics_type", "", kDevice},
    {"profile.static_param.analyse_flag", "", kDevice},
    {"profile.dynamic_param.*", "", "is of profile_type dynamic"},
    {"memory_profile.enable", "", "is not built; write false, and profile.enable with static_param.with_memory",
     "false"},
    {"memory_profile.*", "", "is of memory_profile.enable"},
    {"sorafeature.*", "", "features of text-to-video data are not extracted here"},
};

bool is_section(std::string_view path) {
  return std::ranges::any_of(kKeys, [&](const MmToolKey& key) {
    return key.path.starts_with(path) && key.path.substr(path.size()).starts_with('.');
  });
}

// The row of a key, or that of all keys of its section.
const MmToolKey* row_of(std::string_view path) {
  const auto find = [](std::string_view wanted) {
    const auto* found = std::ranges::find(kKeys, wanted, &MmToolKey::path);
    return found == std::end(kKeys) ? nullptr : found;
  };
  if (const MmToolKey* own = find(path)) return own;
  for (std::size_t dot = path.rfind('.'); dot != std::string_view::npos; dot = path.rfind('.', dot - 1)) {
    if (const MmToolKey* all = find(fmt::format("{}.*", path.substr(0, dot)))) return all;
    if (dot == 0) break;
  }
  return nullptr;
}

// The last names of the rows right below a section.
std::vector<std::string_view> names_in(std::string_view section) {
  std::vector<std::string_view> names;
  for (const MmToolKey& key : kKeys) {
    if (!section.empty() && !(key.path.starts_with(section) && key.path.substr(section.size()).starts_with('.')))
      continue;
    const std::string_view rest = section.empty() ? key.path : key.path.substr(section.size() + 1);
    const std::string_view name = rest.substr(0, rest.find('.'));
    if (name != "*" && std::ranges::find(names, name) == names.end()) names.push_back(name);
  }
  return names;
}

std::vector<std::string> words_of(const Value& value) {
  std::vector<std::string> words;
  if (const auto flag = value.boolean()) return {*flag ? "true" : "false"};
  if (value.is_scalar()) return {value.scalar()};
  for (const Value& item : value.items()) {
    if (!value.is_list() || !item.is_scalar()) value.refuse("one value, or a list of them");
    words.push_back(item.scalar());
  }
  return words;
}

class Reader {
 public:
  explicit Reader(MmTool& tool) : tool_(tool) {}

  void read(const Value& mapping) {
    for (const Value& member : mapping.items()) {
      if (member.is_null()) continue;
      const MmToolKey* row = row_of(member.path());
      if (row != nullptr) {
        read_key(*row, member);
      } else if (!is_section(member.path())) {
        config::refuse_key(member, names_in(mapping.path()));
      } else if (member.is_mapping()) {
        read(member);
      } else {
        member.refuse("a mapping of keys");
      }
    }
  }

  void finish() {
    if (without_effect_.empty()) return;
    tool_.notices.push_back(fmt::format("{}: without effect here: {}", tool_.where, fmt::join(without_effect_, ", ")));
  }

 private:
  void read_key(const MmToolKey& row, const Value& value) {
    if (!row.target.empty()) return read_flag(row, value);
    if (row.accepted.empty()) return without_effect_.push_back(value.path());
    const std::string accepted = fmt::format("|{}|", row.accepted);
    if (value.is_scalar() && accepted.find(fmt::format("|{}|", value.scalar())) != std::string::npos) return;
    config_error("{}: {} is {}: {}", value.where(), value.path(), value.shown(), row.about);
  }

  void read_flag(const MmToolKey& row, const Value& value) {
    const job::Key& key = *job::find_key(row.target);
    if (key.kind == job::Kind::kToggle && !value.boolean()) value.refuse("true or false");
    std::vector<std::string> words = words_of(value);
    if (words.empty()) value.refuse("at least one value");
    if (row.target == "--profile") tool_.enabled = *value.boolean();
    if (row.target == "--profile-ranks" && words == std::vector<std::string>{"-1"}) {
      tool_.all_ranks = true;
    } else {
      tool_.values.push_back({row.target, value.path(), std::move(words)});
    }
  }

  MmTool& tool_;
  std::vector<std::string> without_effect_;
};

}  // namespace

std::span<const MmToolKey> mm_tool_keys() { return kKeys; }

MmTool read_mm_tool(const std::filesystem::path& path) {
  const Value file = config::parse_json(config::read_text(path, "a tools.json"), path.string());
  MmTool tool{.where = escaped(path.string())};
  Reader reader(tool);
  reader.read(file);
  reader.finish();
  return tool;
}

}  // namespace loom::cli
