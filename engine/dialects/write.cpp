#include "engine/dialects/write.h"

#include <algorithm>
#include <fmt/format.h>
#include <map>

#include "engine/core/error.h"
#include "engine/core/spelling.h"
#include "engine/dialects/flags_of_file.h"
#include "engine/dialects/reading.h"
#include "engine/dialects/row.h"
#include "engine/dialects/tool_rules.h"
#include "engine/job/key.h"
#include "sharding/config/fsdp2_keys.h"

namespace loom::dialects {
namespace {

// A tree of mappings, in the order of the rows.
struct Node {
  std::string name;
  std::string value;
  std::vector<Node> below;
};

void put(Node& node, std::string_view key, std::string value) {
  const std::size_t dot = key.find('.');
  const std::string_view name = key.substr(0, dot);
  auto found = std::ranges::find(node.below, name, &Node::name);
  if (found == node.below.end()) found = node.below.insert(found, Node{std::string(name), {}, {}});
  if (dot == std::string_view::npos) {
    found->value = std::move(value);
  } else {
    put(*found, key.substr(dot + 1), std::move(value));
  }
}

void print(const Node& node, int level, std::string& text) {
  for (const Node& child : node.below) {
    text += fmt::format("{:{}}{}:{}{}\n", "", 2 * level, child.name, child.value.empty() ? "" : " ", child.value);
    print(child, level + 1, text);
  }
}

Said value_of_row(const Row& row, const Resolved& resolved) {
  if (row.write != nullptr) return row.write(resolved);
  if (row.act == Act::kFlat) {
    const std::string text = sharding::fsdp2_key(row.target).write(resolved.config);
    const auto there = word_there(row, text);
    return there ? Said(std::string(*there)) : std::nullopt;
  }
  if (row.act != Act::kFlag) return std::nullopt;
  std::string text = value_of(resolved, row.target);
  if (row.inverted) text = text == "true" ? "false" : "true";
  const auto there = word_there(row, text);
  return there && *there != "null" ? Said(std::string(*there)) : std::nullopt;
}

std::string text_by(const Table& table, const Resolved& resolved) {
  Node root;
  for (const Row& row : table.rows) {
    if (const auto value = value_of_row(row, resolved)) put(root, row.key, *value);
  }
  std::string text;
  print(root, 0, text);
  return text;
}

// Keys that a default does not say.
std::string flat_text(const Resolved& resolved) {
  std::string text;
  for (const sharding::Fsdp2Key& key : sharding::fsdp2_keys()) {
    if (resolved.has_config && !sharding::same_value(key, resolved.config, {})) {
      text += fmt::format("{}: {}\n", key.name, key.write(resolved.config));
    }
  }
  if (text.empty() && resolved.has_config) text = "sharding_size: 1\n";
  const job::Job usual = unwritten_job();
  for (const job::Key& key : job::keys()) {
    const std::string name = key_of(key.name());
    const bool is_taken = std::ranges::any_of(sharding::fsdp2_keys(), [&](const auto& k) { return k.name == name; });
    if (is_taken || key.name() == "--fsdp2-config-path" || key.get(resolved.job) == key.get(usual)) continue;
    text += fmt::format("{}: {}\n", name, value_of(resolved, key.name()));
  }
  return text;
}

std::string gpt_args_text(const Resolved& resolved) {
  std::string text = "MM_TOOL_PATH: tools.json\ngpt_args:\n";
  const job::Job usual = unwritten_job();
  for (const job::Key& key : job::keys()) {
    if (key.name() == "--fsdp2-config-path" || key.get(resolved.job) == key.get(usual)) continue;
    text += fmt::format("  {}: {}\n", key_of(key.name()), value_of(resolved, key.name()));
  }
  return text == "MM_TOOL_PATH: tools.json\ngpt_args:\n"
             ? text + "  train_iters: " + value_of(resolved, "--train-iters") + "\n"
             : text;
}

std::string json_of(const Node& node) {
  std::vector<std::string> members;
  for (const Node& child : node.below) {
    const bool is_bare = child.value == "true" || child.value == "false" || child.value.starts_with('[') ||
                         child.value.starts_with('"') ||
                         (!child.value.empty() && child.value.find_first_not_of("0123456789.-+e") == std::string::npos);
    const std::string value = !child.below.empty() ? json_of(child)
                              : is_bare            ? child.value
                                                   : fmt::format("\"{}\"", child.value);
    members.push_back(fmt::format("\"{}\": {}", child.name, value));
  }
  return fmt::format("{{{}}}", fmt::join(members, ", "));
}

std::string json_by(const Table& table, const Resolved& resolved) {
  Node root;
  for (const Row& row : table.rows) {
    if (const auto value = value_of_row(row, resolved)) put(root, row.key, *value);
  }
  return json_of(root) + "\n";
}

std::string overrides_by(const Table& table, const Resolved& resolved) {
  std::string text;
  for (const Row& row : table.rows) {
    if (const auto value = value_of_row(row, resolved)) text += fmt::format("--{} {}\n", row.key, *value);
  }
  return text;
}

std::string text_in(Dialect dialect, const Resolved& resolved) {
  switch (dialect) {
    case Dialect::kFlat:
      return flat_text(resolved);
    case Dialect::kGptArgs:
      return gpt_args_text(resolved);
    case Dialect::kTransformers:
    case Dialect::kDeepSpeed:
      return json_by(*table_of(dialect), resolved);
    case Dialect::kTorchtitan:
      return overrides_by(torchtitan_table(), resolved);
    default:
      return text_by(*table_of(dialect), resolved);
  }
}

job::Texts words_in(const std::string& text) {
  job::Texts words;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find_first_of(" \n", begin), text.size());
    if (end > begin) words.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

}  // namespace

Written write(const Resolved& resolved, Dialect dialect, const Context& context) {
  Written written{text_in(dialect, resolved), {}};
  const bool is_json = dialect == Dialect::kTransformers || dialect == Dialect::kDeepSpeed;
  Context again = context;
  again.flag = [](auto) { return std::nullopt; };
  if (!again.world_given) again.world = resolved.world, again.world_given = true;
  Resolved other;
  if (!written.text.empty()) {
    const Translation translation =
        dialect == Dialect::kTorchtitan
            ? translate_titan(words_in(written.text), again)
            : translate_text(written.text, is_json ? "written.json" : "written.yaml", {}, again);
    raise_refused(translation);
    other = resolve(translation, again);
  }
  written.lost = differences(resolved, other);
  return written;
}

Written write_flags(const Resolved& resolved) {
  Written written;
  const job::Job usual = unwritten_job();
  for (const job::Key& key : job::keys()) {
    const job::Value value = key.get(resolved.job);
    if (value == key.get(usual)) continue;
    const job::Texts words = job::words_of(key, value);
    job::Texts quoted;
    for (const std::string& word : words) quoted.push_back(shell_word(word));
    written.text += fmt::format("{}{}{}\n", key.name(), words.empty() ? "" : " ", fmt::join(quoted, " "));
  }
  for (const sharding::Fsdp2Key& key : sharding::fsdp2_keys()) {
    if (resolved.has_config && !sharding::same_value(key, resolved.config, {})) written.lost.emplace_back(key.name);
  }
  return written;
}

}  // namespace loom::dialects
