#include <algorithm>
#include <fmt/core.h>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/core/spelling.h"
#include "engine/dialects/flags_of_file.h"
#include "engine/dialects/reading.h"
#include "engine/dialects/resolved.h"
#include "engine/job/key.h"
#include "sharding/config/fsdp2_keys.h"

namespace loom::dialects {
namespace {

using config::Value;

void read_key(const sharding::Fsdp2Key& key, const Value& member, Translation& to) {
  if (key.name == "sharding_size" && member.is_null()) return;  // as in the file's own reader
  try {
    sharding::Fsdp2Config& config = to.config ? *to.config : to.config.emplace();
    config.file_name = to.file;
    config.places.emplace(key.name, member.place());
    key.read(member, config);
    to.keys.push_back({std::string(key.name), {key.write(config)}, fmt::format("{} {}", member.where(), key.name)});
  } catch (const ConfigError& error) {
    to.refused.emplace_back(error.what());
  }
}

void read_flag(const job::Key& key, const Value& member, Translation& to) {
  if (is_absent(member) || (member.is_scalar() && member.scalar().empty())) return;
  const std::string origin = fmt::format("{} {}", member.where(), member.path());
  const bool is_built = key.outcome == job::Outcome::kBuilt;
  if (key.kind == job::Kind::kToggle) {
    const auto on = member.boolean();
    if (on && is_built && key.get(unwritten_job()) == job::Value(*on)) return;
    if (!on) {
      to.refused.push_back(
          fmt::format("{}: {} is {}; use true or false", member.where(), member.path(), member.shown()));
    } else if (*on) {
      to.flags.push_back({std::string(key.name()), {}, origin});
    } else if (const std::size_t negative = key.flags.find('!'); negative != std::string_view::npos) {
      to.flags.push_back({std::string(key.flags.substr(negative + 1)), {}, origin});
    }
    return;
  }
  job::Texts words;
  if (member.is_scalar()) words.push_back(member.scalar());
  for (const Value& item : member.items()) words.push_back(item.is_scalar() ? item.scalar() : item.json());
  // The effective configuration of a run has defaults that no flag can say: save_interval: 0.
  if (words.empty() || (is_built && words == words_of(key, key.get(unwritten_job())))) return;
  try {
    if (is_built) job::read_value(key, words);
    to.flags.push_back({std::string(key.name()), words, origin});
  } catch (const ConfigError& error) {
    std::string message = error.what();
    if (message.starts_with(key.name())) message = message.substr(key.name().size());
    to.refused.push_back(fmt::format("{}: {}{}", member.where(), member.path(), message));
  }
}

std::string flag_of(std::string_view key) {
  std::string flag = fmt::format("--{}", key);
  std::ranges::replace(flag, '_', '-');
  return flag;
}

std::vector<std::string> names_of_flags() {
  std::vector<std::string> names;
  for (const job::Key& key : job::keys()) names.push_back(key_of(key.name()));
  return names;
}

void refuse_unknown(const Value& member, const std::vector<std::string>& known, Translation& to) {
  const auto nearest = nearest_spelling(member.key(), known);
  to.refused.push_back(
      fmt::format("{}: unknown key '{}'; {}", member.place().key.text(), shown_text(member.path()),
                  nearest ? fmt::format("did you mean {}?", *nearest) : std::string("see shardloom train --help all")));
}

}  // namespace

std::string key_of(std::string_view flag) {
  std::string name(flag.substr(flag.starts_with("--") ? 2 : 0));
  std::ranges::replace(name, '-', '_');
  return name;
}

void translate_flat(const Value& file, Translation& to) {
  // The effective configuration of a run has flags alone, and the path of its fsdp2_config.yaml.
  const bool flags_first = file.find("use_torch_fsdp2") != nullptr || file.find("fsdp2_config_path") != nullptr;
  for (const Value& member : file.items()) {
    const sharding::Fsdp2Key* key = sharding::find_fsdp2_key(member.key());
    const job::Key* flag = job::find_key(flag_of(member.key()));
    if (key != nullptr && (flag == nullptr || !flags_first)) {
      read_key(*key, member, to);
    } else if (flag != nullptr) {
      read_flag(*flag, member, to);
    } else {
      std::vector<std::string> known = names_of_flags();
      for (const auto& other : sharding::fsdp2_keys()) known.emplace_back(other.name);
      refuse_unknown(member, known, to);
    }
  }
}

namespace {

void read_leaf(const Value& member, Translation& to) {
  const job::Key* key = job::find_key(flag_of(member.key()));
  if (key == nullptr) return refuse_unknown(member, names_of_flags(), to);
  const auto on = member.boolean();
  if (is_absent(member) || (on && !*on)) return;  // there: the words None and False
  if (key->name() == "--lora-target-modules" && member.is_scalar()) {
    Value list(Value::Kind::kList, member.path(), member.key(), member.place());
    const std::string& text = member.scalar();
    for (std::size_t begin = 0; begin <= text.size();) {
      const std::size_t end = std::min(text.find(',', begin), text.size());
      Value item(Value::Kind::kScalar, member.path(), "", member.place());
      item.set_scalar(text.substr(begin, end - begin), Value::Style::kQuoted);
      list.add(std::move(item));
      begin = end + 1;
    }
    return read_flag(*key, list, to);
  }
  read_flag(*key, member, to);
}

void read_leaves(const Value& mapping, std::vector<const Value*>& leaves) {
  for (const Value& member : mapping.items()) {
    if (member.is_mapping()) {
      read_leaves(member, leaves);
    } else {
      leaves.push_back(&member);
    }
  }
}

// A name twice among the leaves; those of lora_args go before those of gpt_args.
void refuse_repeated(const std::vector<const Value*>& leaves, Translation& to) {
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (leaves[i]->key() != leaves[j]->key()) continue;
      to.refused.push_back(fmt::format("{}: {} is given again, first at line {}; keep one",
                                       leaves[i]->place().key.text(), shown_text(leaves[i]->path()),
                                       leaves[j]->place().key.line));
    }
  }
}

}  // namespace

void translate_gpt_args(const Value& file, Translation& to) {
  constexpr std::size_t kMostFlags = 1000;
  std::vector<const Value*> flags, lora;
  for (const Value& member : file.items()) {
    if (member.key() == "gpt_args") {
      read_leaves(member, flags);
    } else if (member.key() == "lora_args") {
      read_leaves(member, lora);
    } else if (member.key() == "MM_TOOL_PATH") {
      to.without_effect.push_back(member.path());
    } else {
      to.listed.push_back(member.path());  // the old --mm-data and --mm-model; holders of anchors
    }
  }
  if (flags.size() + lora.size() > kMostFlags)
    config_error("{}: more than {} flags; give the right file", to.file, kMostFlags);
  refuse_repeated(flags, to);
  refuse_repeated(lora, to);
  for (const std::vector<const Value*>* leaves : {&flags, &lora}) {
    for (const Value* leaf : *leaves) read_leaf(*leaf, to);
  }
  if (file.find("MM_TOOL_PATH") == nullptr) to.missing.emplace_back("MM_TOOL_PATH: its tool needs it");
  const Value* model = file.find("model");
  const Value* folder = model == nullptr ? nullptr : model->find("init_from_hf_path");
  const auto is_given = [&](const Setting& s) { return s.name == "--init-from-hf-path"; };
  if (folder != nullptr && !is_absent(*folder) && std::ranges::none_of(to.flags, is_given)) {
    read_flag(*job::find_key("--init-from-hf-path"), *folder, to);
  }
}

}  // namespace loom::dialects
