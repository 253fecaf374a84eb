#include "sharding/config/fsdp2_config.h"

#include <algorithm>
#include <fmt/format.h>
#include <utility>

#include "engine/config/document.h"
#include "engine/config/section.h"
#include "engine/core/error.h"
#include "sharding/config/fsdp2_keys.h"

namespace loom::sharding {
namespace {

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

[[noreturn]] void refuse_key(const config::Value& member) {
  const std::string where = member.place().key.text();
  for (const auto& [foreign, ours] : kOtherDialects) {
    if (foreign != member.key()) continue;
    if (!ours.empty()) config_error("{}: '{}' is a key of another FSDP2 dialect; write {}", where, foreign, ours);
    config_error("{}: '{}' is a section of another FSDP2 dialect; write the keys of fsdp2_config.yaml at the top level",
                 where, foreign);
  }
  std::vector<std::string_view> names;
  std::ranges::transform(fsdp2_keys(), std::back_inserter(names), &Fsdp2Key::name);
  config::refuse_key(member, names);
}

void read_member(const config::Value& member, Fsdp2Config& config) {
  const Fsdp2Key* key = find_fsdp2_key(member.key());
  if (key == nullptr) refuse_key(member);
  if (member.key() == "sharding_size" && member.is_null()) return;  // MindSpeed-MM: null is the default
  config.places.emplace(member.key(), member.place());
  key->read(member, config);
}

constexpr config::DocumentWords kWords{
    .unknown_alias = "{where}: not readable as YAML ({problem}); put a pattern with {{*}} in quotes",
    .empty = "{file}: the file has no keys; write at least sharding_size: auto"};

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

ReshardAfterForward resolve_reshard(const ReshardAfterForward& chosen, const SourceMark& mark, std::string_view key,
                                    int shard_size) {
  const auto reshard = chosen.on(shard_size);
  if (!reshard) {
    config_error("{}: {} is {}, but a shard group has {} {}; use {}", mark.text(), key, chosen.text(), shard_size,
                 shard_size == 1 ? "rank" : "ranks", alternatives(divisors(shard_size), {"true", "false"}));
  }
  return *reshard;
}

void lay_out_reshard(const Fsdp2Config& config, WorldLayout& layout) {
  const auto resolve = [&](const ReshardAfterForward& chosen, std::string_view key) {
    return resolve_reshard(chosen, config.value_mark(key), key, layout.shard);
  };
  layout.reshard_after_forward = resolve(config.reshard_after_forward, "reshard_after_forward");
  layout.root_reshard_after_forward = config.root_reshard_after_forward
                                          ? resolve(*config.root_reshard_after_forward, "root_reshard_after_forward")
                                          : layout.reshard_after_forward;
  for (const WrapEntry& entry : config.sub_modules_to_wrap) {
    if (!entry.reshard_after_forward) continue;
    resolve_reshard(*entry.reshard_after_forward, entry.mark(), "reshard_after_forward", layout.shard);
  }
}

void check_experts(const Fsdp2Config& config, int world_size) {
  if (world_size % config.expert_parallel_size != 0) {
    config_error("{}: expert_parallel_size is {}, but {}; use {}", config.value_mark("expert_parallel_size").text(),
                 config.expert_parallel_size, running(world_size), alternatives(divisors(world_size)));
  }
}

void check_tensor(const Fsdp2Config& config, int world_size) {
  if (world_size % config.tensor_parallel_size != 0) {
    config_error("{}: tensor_parallel_size is {}, but {}; use {}", config.value_mark("tensor_parallel_size").text(),
                 config.tensor_parallel_size, running(world_size), alternatives(divisors(world_size)));
  }
  if (config.sequence_parallel && config.tensor_parallel_size == 1) {
    config_error("{}: sequence_parallel is true, but tensor_parallel_size is 1; use 2 or more, or remove the key",
                 config.value_mark("sequence_parallel").text());
  }
  if (config.sequence_parallel) return;
  for (const auto& [key, text] :
       {std::pair{"overlap_slices", config.overlap_slices > 1 ? fmt::to_string(config.overlap_slices) : ""},
        {"regather_colwise_input", config.regather_colwise_input ? "true" : ""}}) {
    if (text.empty()) continue;
    config_error("{}: {} is {}, but sequence_parallel is false; write sequence_parallel: true, or remove the key",
                 config.value_mark(key).text(), key, text);
  }
}

// One of the axes that share a sequence, for messages: that which the file gives.
std::string_view context_key(const Fsdp2Config& config) {
  return config.ring_attention_size > 1 ? "ring_attention_size" : "ulysses_parallel_size";
}

void check_context(const Fsdp2Config& config, int world_size, const WorldLayout& layout) {
  const std::int64_t ranks = std::int64_t{config.ulysses_parallel_size} * config.ring_attention_size;
  if (ranks == 1) return;
  const std::string said = fmt::format("{}: ulysses_parallel_size {} x ring_attention_size {} = {}",
                                       config.value_mark(context_key(config)).text(), config.ulysses_parallel_size,
                                       config.ring_attention_size, ranks);
  if (world_size % ranks != 0) {
    config_error("{}, but {}; use sizes whose product is {}", said, running(world_size),
                 alternatives(divisors(world_size)));
  }
  if (layout.shard % ranks != 0 && ranks % layout.shard != 0) {
    config_error("{}, but sharding_size is {}; use a multiple or a divisor of {}", said, layout.shard, ranks);
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
  return parse_fsdp2_config(config::read_text(path, "an existing YAML file"), path.string());
}

Fsdp2Config parse_fsdp2_config(std::string_view text, std::string_view file_name) {
  Fsdp2Config config;
  config.file_name = file_name;
  const config::Value document = config::parse_yaml(text, file_name, kWords);
  std::vector<std::string> refused;
  for (const config::Value& member : document.items()) {
    try {
      read_member(member, config);
    } catch (const ConfigError& error) {
      refused.emplace_back(error.what());
    }
  }
  config::refuse_keys(file_name, refused);
  return config;
}

WorldLayout validate_against_world(const Fsdp2Config& config, int world_size) {
  require(world_size >= 1, "a world of {} ranks, expected at least 1", world_size);
  check_tensor(config, world_size);
  const int ranks = world_size / config.tensor_parallel_size;  // with the same parts of matrices
  WorldLayout layout;
  layout.tensor = config.tensor_parallel_size;
  lay_out_mesh(config, ranks, layout);
  lay_out_reshard(config, layout);
  check_experts(config, world_size);
  check_context(config, ranks, layout);
  if (config.pin_memory && !config.offload_to_cpu && config.activation_offload_modules.empty()) {
    layout.warnings.push_back(fmt::format("{}: pin_memory is true, but offload_to_cpu is not, so nothing is pinned",
                                          config.value_mark("pin_memory").text()));
  }
  return layout;
}

}  // namespace loom::sharding
