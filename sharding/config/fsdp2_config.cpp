#include "sharding/config/fsdp2_config.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fstream>
#include <numeric>
#include <sstream>
#include <utility>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include "engine/core/error.h"
#include "engine/core/spelling.h"

namespace loom::sharding {
namespace {

constexpr std::string_view kRemoveOrFill = "give it a value or remove the key";

SourceMark mark_at(const YAML::Mark& mark, std::string_view file) {
  return {std::string(file), mark.line + 1, mark.column + 1};
}

// One `key: value` of the file.
struct Entry {
  std::string key;
  YAML::Node node;
  Fsdp2Config::Place place;

  bool plain() const { return node.IsScalar() && node.Tag() == "?"; }
  bool text() const { return node.IsScalar() && (node.Tag() == "?" || node.Tag() == "!"); }
};

// The value as the user wrote it, as far as a message needs it.
std::string shown(const YAML::Node& node) {
  if (node.IsSequence()) return "a list";
  if (node.IsMap()) return "a mapping";
  if (node.IsNull()) return "empty";
  if (node.Tag() == "!") return fmt::format("{:?}", node.Scalar());
  if (node.Tag() == "?") return node.Scalar();
  return fmt::format("a value with the tag {}", node.Tag());
}

[[noreturn]] void refuse(const Entry& entry, std::string_view allowed) {
  if (entry.node.IsNull()) {
    config_error("{}: {} is empty; use {}, or remove the key", entry.place.key.text(), entry.key, allowed);
  }
  config_error("{}: {} is {}; use {}", entry.place.value.text(), entry.key, shown(entry.node), allowed);
}

// --- Values of one type

// Decimal digits with an optional minus, as an int; nothing for any other text.
std::optional<int> decimal(const Entry& entry) {
  if (!entry.plain()) return std::nullopt;
  const std::string& text = entry.node.Scalar();
  const std::string_view digits = std::string_view(text).substr(text.starts_with('-') ? 1 : 0);
  if (digits.size() > 1 && digits.front() == '0') return std::nullopt;  // octal to Python's YAML
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<bool> boolean(const Entry& entry) {
  static constexpr std::array kTrue = {"true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"};
  static constexpr std::array kFalse = {"false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"};
  if (!entry.plain()) return std::nullopt;
  if (std::ranges::find(kTrue, entry.node.Scalar()) != kTrue.end()) return true;
  if (std::ranges::find(kFalse, entry.node.Scalar()) != kFalse.end()) return false;
  return std::nullopt;
}

int read_int(const Entry& entry, int least) {
  const auto value = decimal(entry);
  if (!value || *value < least) refuse(entry, fmt::format("a whole number of at least {}", least));
  return *value;
}

bool read_bool(const Entry& entry) {
  const auto value = boolean(entry);
  if (!value) refuse(entry, "true or false, without quotes");
  return *value;
}

int read_sharding_size(const Entry& entry) {
  if (entry.text() && entry.node.Scalar() == "auto") return Fsdp2Config::kAllRanks;
  const auto value = decimal(entry);
  if (!value || *value < 1) refuse(entry, "a whole number of at least 1, or auto (all ranks)");
  return *value;
}

std::variant<bool, int> read_reshard(const Entry& entry) {
  if (const auto value = boolean(entry)) return *value;
  const auto ranks = decimal(entry);
  if (!ranks || *ranks < 1) refuse(entry, "true, false or a number of ranks of at least 1");
  return *ranks;
}

std::optional<DType> read_dtype(const Entry& entry) {
  if (entry.node.IsNull()) return std::nullopt;
  const auto dtype = entry.text() ? parse_dtype(entry.node.Scalar()) : std::nullopt;
  if (dtype && !is_floating(*dtype)) {
    config_error("{}: {} is {}, which is not a floating type; use bf16, fp16, fp32 or fp64", entry.place.value.text(),
                 entry.key, shown(entry.node));
  }
  if (!dtype) refuse(entry, "bf16, fp16, fp32 or fp64");
  return dtype;
}

ModulePattern read_pattern(const Entry& list, std::size_t index) {
  const YAML::Node item = list.node[index];
  const SourceMark mark = mark_at(item.Mark(), list.place.key.file);
  if (item.IsNull()) {
    config_error("{}: {} has nothing at entry {}; name a module or remove the entry", list.place.key.text(), list.key,
                 index + 1);
  }
  if (item.IsMap()) {
    config_error("{}: {} has a mapping as entry {}; put a pattern with braces in quotes, as in \"layers.{{*}}\"",
                 mark.text(), list.key, index + 1);
  }
  if (!Entry{list.key, item, list.place}.text()) {
    config_error("{}: {} has {} as entry {}; use a module path, as in \"layers.{{*}}\"", mark.text(), list.key,
                 shown(item), index + 1);
  }
  return ModulePattern::parse(item.Scalar(), list.key, mark);
}

std::vector<ModulePattern> read_patterns(const Entry& entry) {
  if (!entry.node.IsSequence()) refuse(entry, "a list of module paths, each on a line of its own after '- '");
  std::vector<ModulePattern> patterns;
  for (std::size_t i = 0; i < entry.node.size(); ++i) patterns.push_back(read_pattern(entry, i));
  return patterns;
}

std::vector<ModulePattern> read_optional_patterns(const Entry& entry) {
  return entry.node.IsNull() ? std::vector<ModulePattern>{} : read_patterns(entry);
}

// --- Keys

struct Key {
  std::string_view name;
  void (*read)(const Entry&, Fsdp2Config&);
};

constexpr std::array kKeys = {
    Key{"sharding_size", [](const Entry& e, Fsdp2Config& c) { c.sharding_size = read_sharding_size(e); }},
    Key{"param_dtype", [](const Entry& e, Fsdp2Config& c) { c.param_dtype = read_dtype(e); }},
    Key{"reduce_dtype", [](const Entry& e, Fsdp2Config& c) { c.reduce_dtype = read_dtype(e); }},
    Key{"output_dtype", [](const Entry& e, Fsdp2Config& c) { c.output_dtype = read_dtype(e); }},
    Key{"cast_forward_inputs", [](const Entry& e, Fsdp2Config& c) { c.cast_forward_inputs = read_bool(e); }},
    Key{"sub_modules_to_wrap", [](const Entry& e, Fsdp2Config& c) { c.sub_modules_to_wrap = read_patterns(e); }},
    Key{"ignored_modules", [](const Entry& e, Fsdp2Config& c) { c.ignored_modules = read_optional_patterns(e); }},
    Key{"recompute_modules", [](const Entry& e, Fsdp2Config& c) { c.recompute_modules = read_optional_patterns(e); }},
    Key{"use_reentrant", [](const Entry& e, Fsdp2Config& c) { c.use_reentrant = read_bool(e); }},
    Key{"reshard_after_forward", [](const Entry& e, Fsdp2Config& c) { c.reshard_after_forward = read_reshard(e); }},
    Key{"offload_to_cpu", [](const Entry& e, Fsdp2Config& c) { c.offload_to_cpu = read_bool(e); }},
    Key{"pin_memory", [](const Entry& e, Fsdp2Config& c) { c.pin_memory = read_bool(e); }},
    Key{"num_to_forward_prefetch", [](const Entry& e, Fsdp2Config& c) { c.num_to_forward_prefetch = read_int(e, 0); }},
    Key{"num_to_backward_prefetch",
        [](const Entry& e, Fsdp2Config& c) { c.num_to_backward_prefetch = read_int(e, 0); }},
    Key{"align_fsdp_param_groups", [](const Entry& e, Fsdp2Config& c) { c.align_fsdp_param_groups = read_bool(e); }},
    Key{"expert_parallel_size", [](const Entry& e, Fsdp2Config& c) { c.expert_parallel_size = read_int(e, 1); }},
    Key{"reshard_local_experts", [](const Entry& e, Fsdp2Config& c) { c.reshard_local_experts = read_bool(e); }},
    Key{"moe_modules", [](const Entry& e, Fsdp2Config& c) { c.moe_modules = read_optional_patterns(e); }},
};

// Keys of the other FSDP2 dialects (six sections; flat), with what to write here.
constexpr std::pair<std::string_view, std::string_view> kOtherDialects[] = {
    {"parallel", ""},
    {"model", ""},
    {"data", ""},
    {"features", ""},
    {"training", ""},
    {"tools", ""},
    {"fsdp_plan", ""},
    {"fully_shard_parallel_size", "sharding_size"},
    {"fsdp_size", "sharding_size"},
    {"apply_modules", "sub_modules_to_wrap"},
    {"fsdp_modules", "sub_modules_to_wrap"},
    {"cpu_offload", "offload_to_cpu"},
};

[[noreturn]] void refuse_key(const std::string& key, const SourceMark& mark) {
  for (const auto& [foreign, ours] : kOtherDialects) {
    if (foreign != key) continue;
    if (!ours.empty()) {
      config_error("{}: '{}' is a key of another FSDP2 dialect; write {}", mark.text(), key, ours);
    }
    config_error("{}: '{}' is a section of another FSDP2 dialect; write the keys of fsdp2_config.yaml at the top level",
                 mark.text(), key);
  }
  std::vector<std::string> names;
  std::ranges::transform(kKeys, std::back_inserter(names), [](const Key& k) { return std::string(k.name); });
  if (const auto nearest = nearest_spelling(key, names)) {
    config_error("{}: unknown key '{}'; did you mean {}?", mark.text(), key, *nearest);
  }
  config_error("{}: unknown key '{}'; the keys are {}", mark.text(), key, fmt::join(names, ", "));
}

Entry entry_of(const YAML::Node& key, const YAML::Node& value, std::string_view file) {
  const SourceMark key_mark = mark_at(key.Mark(), file);
  if (!key.IsScalar()) config_error("{}: a key is {}; write key: value lines", key_mark.text(), shown(key));
  // The parser marks an absent value at whatever follows it.
  return {key.Scalar(), value, {key_mark, value.IsNull() ? key_mark : mark_at(value.Mark(), file)}};
}

void read_entry(const Entry& entry, Fsdp2Config& config) {
  const auto rule = std::ranges::find(kKeys, entry.key, &Key::name);
  if (rule == kKeys.end()) refuse_key(entry.key, entry.place.key);
  const auto [first, fresh] = config.places.emplace(entry.key, entry.place);
  if (!fresh) {
    config_error("{}: {} is given again, first at line {}; keep one", entry.place.key.text(), entry.key,
                 first->second.key.line);
  }
  rule->read(entry, config);
}

// --- The file

[[noreturn]] void refuse_yaml(const YAML::Exception& error, std::string_view file) {
  const bool alias = error.msg.find("alias") != std::string::npos;
  config_error(
      "{}: not readable as YAML ({}); {}", mark_at(error.mark, file).text(), error.msg,
      alias ? "put a pattern with {*} in quotes" : "check indentation, colons and quotes here and in the line above");
}

// Takes no interest in a document but in where it begins.
class DocumentStart : public YAML::EventHandler {
 public:
  void OnDocumentStart(const YAML::Mark& mark) override { mark_ = mark; }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t, const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}

  const YAML::Mark& mark() const { return mark_; }

 private:
  YAML::Mark mark_;
};

// The parser reads one document and leaves the rest; YAML::LoadAll would not end on some broken texts.
void refuse_second_document(const std::string& text, std::string_view file) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  DocumentStart first, second;
  parser.HandleNextDocument(first);
  if (parser.HandleNextDocument(second)) {
    config_error("{}: a second YAML document begins here; keep one document of key: value lines",
                 mark_at(second.mark(), file).text());
  }
}

YAML::Node load_document(const std::string& text, std::string_view file) {
  YAML::Node document;
  try {
    document.reset(YAML::Load(text));
    refuse_second_document(text, file);
  } catch (const YAML::Exception& error) {
    refuse_yaml(error, file);
  }
  if (document.IsNull()) config_error("{}: the file has no keys; write at least sharding_size: auto", file);
  if (!document.IsMap()) {
    config_error("{}: the file is {}; write key: value lines", mark_at(document.Mark(), file).text(),
                 document.IsSequence() ? "a list" : "a single value");
  }
  return document;
}

// --- Fitting the world

std::vector<std::string> divisors(int number) {
  std::vector<std::string> result;
  for (int d = 1; d <= number; ++d) {
    if (number % d == 0) result.push_back(fmt::to_string(d));
  }
  return result;
}

// "1, 2 or 4", with further words at the end.
std::string alternatives(std::vector<std::string> words, std::initializer_list<std::string> more = {}) {
  words.insert(words.end(), more);
  if (words.size() == 1) return words.front();
  return fmt::format("{} or {}", fmt::join(words.begin(), words.end() - 1, ", "), words.back());
}

std::string running(int world_size) {
  return world_size == 1 ? "1 rank is running" : fmt::format("{} ranks are running", world_size);
}

void lay_out_mesh(const Fsdp2Config& config, int world_size, WorldLayout& layout) {
  layout.shard = config.sharding_size == Fsdp2Config::kAllRanks ? world_size : config.sharding_size;
  const std::string where = config.value_mark("sharding_size").text();
  if (world_size % layout.shard != 0) {
    config_error("{}: sharding_size is {}, but {}; use {}", where, layout.shard, running(world_size),
                 alternatives(divisors(world_size), {"auto (all ranks)"}));
  }
  layout.replicate = world_size / layout.shard;
  if (layout.shard == 1 && world_size > 1) {
    layout.warnings.push_back(
        fmt::format("{}: sharding_size is 1{}, so nothing is sharded: each of the {} ranks holds the whole model; use "
                    "auto to shard "
                    "over all ranks",
                    where, config.places.contains("sharding_size") ? "" : " (the default)", world_size));
  }
}

void lay_out_reshard(const Fsdp2Config& config, WorldLayout& layout) {
  if (const bool* freed = std::get_if<bool>(&config.reshard_after_forward)) {
    layout.reshard_after_forward = *freed;
    layout.reshard_ranks = *freed ? layout.shard : 1;
    return;
  }
  layout.reshard_ranks = std::get<int>(config.reshard_after_forward);
  layout.reshard_after_forward = layout.reshard_ranks != 1;
  if (layout.shard % layout.reshard_ranks != 0) {
    config_error("{}: reshard_after_forward is {}, but a shard group has {} {}; use {}",
                 config.value_mark("reshard_after_forward").text(), layout.reshard_ranks, layout.shard,
                 layout.shard == 1 ? "rank" : "ranks", alternatives(divisors(layout.shard), {"true", "false"}));
  }
}

void check_experts(const Fsdp2Config& config, int world_size) {
  if (world_size % config.expert_parallel_size != 0) {
    config_error("{}: expert_parallel_size is {}, but {}; use {}", config.value_mark("expert_parallel_size").text(),
                 config.expert_parallel_size, running(world_size), alternatives(divisors(world_size)));
  }
}

}  // namespace

SourceMark Fsdp2Config::value_mark(std::string_view key) const {
  const auto place = places.find(key);
  return place == places.end() ? SourceMark{file_name} : place->second.value;
}

SourceMark Fsdp2Config::key_mark(std::string_view key) const {
  const auto place = places.find(key);
  return place == places.end() ? SourceMark{file_name} : place->second.key;
}

Fsdp2Config load_fsdp2_config(const std::filesystem::path& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    config_error("{}: is a folder; give the path of the YAML file itself", path.string());
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) config_error("{}: {}; give the path of an existing YAML file", path.string(), std::strerror(errno));
  std::ostringstream text;
  text << file.rdbuf();
  return parse_fsdp2_config(text.str(), path.string());
}

Fsdp2Config parse_fsdp2_config(std::string_view text, std::string_view file_name) {
  Fsdp2Config config;
  config.file_name = file_name;
  // An end of line after the last value lets the parser mark the end of the file, not its beginning.
  for (const auto& pair : load_document(std::string(text) + "\n", file_name)) {
    read_entry(entry_of(pair.first, pair.second, file_name), config);
  }
  return config;
}

WorldLayout validate_against_world(const Fsdp2Config& config, int world_size) {
  require(world_size >= 1, "a world of {} ranks, expected at least 1", world_size);
  WorldLayout layout;
  lay_out_mesh(config, world_size, layout);
  lay_out_reshard(config, layout);
  check_experts(config, world_size);
  if (config.pin_memory && !config.offload_to_cpu) {
    layout.warnings.push_back(fmt::format("{}: pin_memory is true, but offload_to_cpu is not, so nothing is pinned",
                                          config.value_mark("pin_memory").text()));
  }
  return layout;
}

void reject_not_built(const Fsdp2Config& config) {
  const auto refuse_if = [&](bool used, std::string_view key, std::string_view what) {
    if (!used) return;
    config_error("{}: {} is not built yet in this version; remove the key", config.key_mark(key).text(), what);
  };
  refuse_if(config.align_fsdp_param_groups, "align_fsdp_param_groups", "align_fsdp_param_groups: true");
  refuse_if(config.expert_parallel_size > 1, "expert_parallel_size",
            fmt::format("expert_parallel_size: {}", config.expert_parallel_size));
  refuse_if(!config.moe_modules.empty(), "moe_modules", "moe_modules");
}

}  // namespace loom::sharding
