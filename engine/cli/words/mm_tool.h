// MmTool: MindSpeed-MM's tools.json (--mm-tool). Private to engine/cli.
//
// Keys      each is a row of mm_tool_keys(): a flag of the profile; taken with some values only, and refused by name
//           otherwise; or without effect here, named in one notice. An unknown key is refused with the nearest one.
// Profile   profile.enable switches it on. Without that, its keys are checked, and the flags of --profile count.
// Errors    ConfigError with the file, the key and its value.
// Source    MindSpeed-MM, mindspeed_mm/tools/tools.json, profiler.py and README.md.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace loom::cli {

struct MmToolKey {
  std::string_view path;    // "profile.static_param.level"; "sorafeature.*" stands for all keys of a section
  std::string_view target;  // a flag; empty: none
  // Of a row without a flag: why the key has no effect; if there are `accepted` values, why others are refused, and
  // what to write.
  std::string_view about = {};
  std::string_view accepted = {};  // values that change nothing, with '|' between them
};
std::span<const MmToolKey> mm_tool_keys();

// A key that is a flag of the profile.
struct MmToolValue {
  std::string_view flag;
  std::string path;
  std::vector<std::string> words;  // of a toggle "true" or "false"
};

struct MmTool {
  std::string where;  // the file, for messages
  bool enabled = false;
  bool all_ranks = false;  // profile.ranks is [-1]
  std::vector<MmToolValue> values = {};
  std::vector<std::string> notices = {};  // a line each
};

MmTool read_mm_tool(const std::filesystem::path& path);

}  // namespace loom::cli
