// Reading: a file's mapping against the rows of its dialect, and the keys that are read together. Private to
// engine/dialects.
//
// Absent    a key that is not in the file, is null, or is the text None.
// Refusals  are gathered; a look-up of a refused value gives the row's default.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/config/value.h"
#include "engine/dialects/model_tree.h"
#include "engine/dialects/row.h"
#include "engine/dialects/translate.h"

namespace loom::dialects {

class Reading {
 public:
  // Reads every key that one row explains. `file` and `context` outlive this.
  Reading(const Table& table, const config::Value& file, const Context& context, Translation& to);

  // Runs the table's function, and puts the keys of fsdp2_config.yaml together.
  void finish();

  // --- the file's keys
  bool is_given(std::string_view key) const { return given(key) != nullptr; }
  // Null when absent.
  const config::Value* given(std::string_view key) const;
  // The value, or the row's default; null when that is null.
  const config::Value* value(std::string_view key);
  bool flag(std::string_view key);
  std::int64_t whole(std::string_view key);
  double number(std::string_view key);
  std::string text(std::string_view key);  // "" when absent
  job::Texts texts(std::string_view key);  // of a list, or of one scalar

  // --- what they come to
  // A flag, with the origin of `key`.
  void set_flag(std::string_view flag, job::Texts words, std::string_view key);
  // A flag from the key's value, checked against the job's key.
  void set_flag_from(std::string_view flag, std::string_view key);
  // A key of fsdp2_config.yaml.
  void set_key(std::string_view name, const config::Value& value);
  void set_key(std::string_view name, std::string text, std::string_view key);
  void set_key(std::string_view name, const job::Texts& items, std::string_view key);
  // sub_modules_to_wrap: `modules`, each a group, and `together`, if there are any, one group with its own reshard.
  void set_groups(const job::Texts& modules, const job::Texts& together, bool reshard, std::string_view key);
  bool has_key(std::string_view name) const { return keys_.contains(std::string(name)); }

  void note(std::string text) { to_.notes.push_back(std::move(text)); }
  void miss(std::string_view key, std::string_view advice);
  void list(std::string_view key) { to_.listed.emplace_back(key); }
  // "file:line:column: key is VALUE; ADVICE".
  void refuse(std::string_view key, std::string_view advice);

  // Members of an open section that no row knows ("model.*" is derived): listed, or refused where it is `closed`.
  void read_rest(std::string_view section, bool closed);

  const Context& context() const { return context_; }
  int world() const;
  bool knows_world() const { return context_.world_given || to_.world.has_value(); }
  void set_world(int ranks) { to_.world = ranks; }
  // A flag of the command line, else the word that the file set for it.
  std::optional<std::string> word_of(std::string_view flag) const;
  Translation& to() { return to_; }
  // The model of --model-graph, --model-config or --init-from-hf-path; null where none is known or it cannot be built.
  const ModelTree* model();

 private:
  std::optional<bool> boolean_of(const config::Value& value) const;
  void read_mapping(const config::Value& mapping);
  void read_member(const config::Value& member);
  void read_row(const Row& row, const config::Value& value);
  void read_flag(const Row& row, const config::Value& value);
  void read_refused(const Row& row, const config::Value& value);
  void apply_defaults();
  const Row* row_of(std::string_view key) const;
  bool is_section(std::string_view key) const;
  std::vector<std::string> siblings(std::string_view section) const;
  std::optional<std::string> place_of(const std::string& name) const;
  void refuse_unknown(const config::Value& member);
  std::string origin_of(std::string_view key) const;
  // A list of texts with the place of `key`.
  config::Value list_value(std::string path, std::string name, const job::Texts& items, std::string_view key);

  const Table& table_;
  const config::Value& file_;
  const Context& context_;
  Translation& to_;
  std::map<std::string, config::Value, std::less<>> keys_;       // of fsdp2_config.yaml
  std::map<std::string, config::Value, std::less<>> fallbacks_;  // of rows, made when they are asked for
  std::optional<std::optional<ModelTree>> model_;
};

// A scalar, or a list "[a, b]", at a place that is a name only.
config::Value made_value(std::string_view text, std::string_view key, std::string_view place);
// As YAML text in one line.
std::string yaml_text(std::string_view scalar);
std::string yaml_text(const job::Texts& items);
bool is_absent(const config::Value& value);

}  // namespace loom::dialects
