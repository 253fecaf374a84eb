// ModulePattern: the modules of a model that an entry of sub_modules_to_wrap (or of another module list) selects.
//
// Grammar  pattern := path [ ['.'] '{' body '}' [ ['.'] path ] ]     path := name ('.' name)*
//          body    := '*' | item (',' item)*                         item := int | int '-' int
//          At most one brace group. '{*}' is exactly these three characters and means every entry of the container
//          before it; inside a list of indices, spaces are allowed around numbers. Ranges are inclusive, their union
//          is taken in ascending order whatever the order written, and a range a-b with a > b contributes nothing.
// Paths    from the module that owns fully_shard, without its own name: "model.layers.3.mlp".
// Aliases  a model may have other names for its modules (ModuleTreeView::real_path): a pattern selects real
//          paths, and a real path always wins. Messages give the real path, then the written one.
// Classes  a plain path that no module has may be a class instead, with or without its Python package
//          ("transformers.models.qwen2.modeling_qwen2.Qwen2DecoderLayer"): it then means every module of that class.
// Errors   ConfigError, in one line: file:line:column, key, pattern, the problem, the remedy: the nearest path, or
//          for a class-like name (a capital letter begins its last part) the nearest class and the list of them.
//          A pattern that matches nothing is an error; an index past the end only warns while the pattern matches
//          something.
// Source   the pattern table of the MindSpeed-MM mixin route; there, a pattern that matches nothing is skipped.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/config/source_mark.h"

namespace loom::sharding {

using config::SourceMark;

// The tree that patterns are matched against. An implementation need not hold a model.
class ModuleTreeView {
 public:
  virtual ~ModuleTreeView() = default;
  virtual bool exists(std::string_view path) const = 0;
  // The path of the module that `path` names, itself or as an alias; nothing if there is none. No aliases by default.
  virtual std::optional<std::string> real_path(std::string_view path) const {
    return exists(path) ? std::optional<std::string>(path) : std::nullopt;
  }
  // Entries of a container (a module list), which are its children "0", "1", ...; none if there is no such path or
  // it is not a container.
  virtual std::optional<int> container_size(std::string_view path) const = 0;
  // Every module of a class, by its registered name ("Qwen2DecoderLayer"), in pre-order; the root excluded. None by
  // default.
  virtual std::vector<std::string> paths_of_class(std::string_view) const { return {}; }
  // The classes of the tree's modules, without the root's, each once, sorted; used for hints only. None by default.
  virtual std::vector<std::string> known_classes() const { return {}; }
  // Every path of the tree, the root excluded, and the aliases; used for hints only.
  virtual std::vector<std::string> known_paths() const = 0;
};

// One parsed entry.
class ModulePattern {
 public:
  // Inclusive; first <= last.
  struct Range {
    int first = 0;
    int last = 0;
    bool operator==(const Range&) const = default;
  };
  enum class Kind { kPath, kAll, kIndices };

  // `key` is the list that holds the entry, `mark` its place. Throws ConfigError if `text` does not follow the
  // grammar.
  static ModulePattern parse(std::string_view text, std::string_view key, const SourceMark& mark);

  const std::string& text() const { return text_; }
  const std::string& key() const { return key_; }
  const SourceMark& mark() const { return mark_; }
  Kind kind() const { return kind_; }
  // The plain path, or the container before the brace.
  const std::string& prefix() const { return prefix_; }
  // The path after the brace; often empty.
  const std::string& tail() const { return tail_; }
  // kIndices: disjoint, ascending, never touching. Empty if every range written was a-b with a > b.
  const std::vector<Range>& ranges() const { return ranges_; }
  // kIndices: how many indices the pattern names, whatever the model holds.
  long long index_count() const;

 private:
  ModulePattern() = default;

  std::string text_;
  std::string key_;
  SourceMark mark_;
  Kind kind_ = Kind::kPath;
  std::string prefix_;
  std::string tail_;
  std::vector<Range> ranges_;
};

struct ModuleExpansion {
  // In order of the entries, indices ascending inside an entry; a path selected twice is kept at its first place.
  std::vector<std::string> paths;
  // For each path that an alias selected: the written name.
  std::map<std::string, std::string> written_as;
  // One line each, with file:line:column; for rank 0 to print.
  std::vector<std::string> warnings;
};

// Throws ConfigError if the path or container is missing (with the nearest existing path) or nothing matches.
// A container itself ("model.layers", which has no forward) does match here; fully_shard refuses it.
ModuleExpansion expand(const ModulePattern& pattern, const ModuleTreeView& tree);
ModuleExpansion expand(std::span<const ModulePattern> patterns, const ModuleTreeView& tree);

}  // namespace loom::sharding
