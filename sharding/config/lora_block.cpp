#include "sharding/config/lora_block.h"

#include <array>
#include <cmath>
#include <fmt/format.h>
#include <limits>

#include "engine/config/section.h"
#include "engine/core/error.h"

namespace loom::sharding {
namespace {

using config::Value;

bool read_flag(const Value& value) {
  const auto flag = value.boolean();
  if (!flag) value.refuse("true or false, without quotes");
  return *flag;
}

int read_rank(const Value& value) {
  const auto number = value.whole();
  if (!number || *number < 1 || *number > std::numeric_limits<int>::max()) {
    value.refuse("a whole number of at least 1");
  }
  return static_cast<int>(*number);
}

double read_number(const Value& value, bool (*holds)(double), std::string_view allowed) {
  const auto number = value.number();
  if (!number || !std::isfinite(*number) || !holds(*number)) value.refuse(allowed);
  return *number;
}

std::string read_text(const Value& value, std::string_view allowed) {
  if (!value.is_scalar() || value.is_tagged() || value.scalar().empty()) value.refuse(allowed);
  return value.scalar();
}

std::vector<std::string> read_targets(const Value& value) {
  constexpr std::string_view kAllowed = "a list of modules, as in [q_proj, v_proj]; entries with {*} in quotes";
  if (value.is_text() && value.scalar() == "all-linear") return {value.scalar()};
  if (!value.is_list() || value.items().empty()) value.refuse(kAllowed);
  std::vector<std::string> targets;
  for (const Value& item : value.items()) targets.push_back(read_text(item, "a module's name or path"));
  return targets;
}

std::string read_init(const Value& value) {
  if (const auto flag = value.boolean()) return *flag ? "true" : "false";
  if (value.is_text() && value.scalar() == "gaussian") return value.scalar();
  const bool known =
      value.is_text() && (value.scalar().starts_with("pissa") || value.scalar() == "eva" || value.scalar() == "olora" ||
                          value.scalar() == "corda" || value.scalar() == "loftq" || value.scalar() == "orthogonal");
  if (known) {
    config_error("{}: {} is {}, which is not built; use true, false or gaussian", value.where(), value.path(),
                 value.shown());
  }
  value.refuse("true, false or gaussian");
}

struct Key {
  std::string_view name;
  void (*read)(const Value& value, LoraBlock& block);
};

constexpr std::array kKeys = {
    Key{"enable", [](const Value& v, LoraBlock& b) { b.enable = read_flag(v); }},
    Key{"rank", [](const Value& v, LoraBlock& b) { b.rank = read_rank(v); }},
    Key{"alpha",
        [](const Value& v, LoraBlock& b) {
          b.alpha = read_number(
              v, [](double x) { return x > 0; }, "a number above 0");
        }},
    Key{"target_modules", [](const Value& v, LoraBlock& b) { b.target_modules = read_targets(v); }},
    Key{"dropout",
        [](const Value& v, LoraBlock& b) {
          b.dropout = read_number(
              v, [](double x) { return x >= 0 && x < 1; }, "a number from 0 to below 1");
        }},
    Key{"init_lora_weights", [](const Value& v, LoraBlock& b) { b.init_lora_weights = read_init(v); }},
    Key{"pretrained_lora_path",
        [](const Value& v, LoraBlock& b) {
          b.pretrained_lora_path = v.is_null() ? "" : read_text(v, "a folder that peft wrote");
        }},
    // Keys about experts, whose fused weights have no adapters here: nothing is converted either way.
    Key{"lora_target_modules_support",
        [](const Value& v, LoraBlock&) {
          if (!v.is_null()) v.refuse("null: which modules can have adapters is known here");
        }},
    Key{"disable_peft_moe_conversion", [](const Value& v, LoraBlock&) { static_cast<void>(read_flag(v)); }},
};

const Key& key_of(const Value& member) {
  for (const Key& key : kKeys) {
    if (key.name == member.key()) return key;
  }
  std::vector<std::string_view> names;
  for (const Key& key : kKeys) names.push_back(key.name);
  config::refuse_key(member, names);
}

}  // namespace

LoraBlock read_lora_block(const Value& value) {
  LoraBlock block;
  block.mark = value.place().key;
  if (value.is_null()) return block;
  if (!value.is_mapping()) value.refuse("a mapping with enable: true, rank, alpha, target_modules and dropout");
  for (const Value& member : value.items()) key_of(member).read(member, block);
  return block;
}

std::string write_lora_block(const LoraBlock& block) {
  if (!block.enable) return "null";
  return fmt::format(
      "{{enable: true, rank: {}, alpha: {}, target_modules: [{}], dropout: {}, init_lora_weights: {}, "
      "pretrained_lora_path: {}}}",
      block.rank, block.alpha, fmt::join(block.target_modules, ", "), block.dropout, block.init_lora_weights,
      block.pretrained_lora_path.empty() ? "null" : block.pretrained_lora_path);
}

}  // namespace loom::sharding
