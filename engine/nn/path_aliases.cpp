#include "engine/nn/path_aliases.h"

#include <algorithm>

#include "engine/core/error.h"

namespace loom::nn {
namespace {

struct Table {
  std::vector<PathAlias> entries;
};

// `path` with its beginning `from` replaced; nothing when it does not begin so.
std::optional<std::string> replaced(std::string_view path, std::string_view from, std::string_view to) {
  if (!path.starts_with(from)) return std::nullopt;
  const std::string_view rest = path.substr(from.size());
  if (!rest.empty() && rest.front() != '.') return std::nullopt;
  return std::string(to).append(rest);
}

}  // namespace

void declare_path_aliases(Module& model, std::vector<PathAlias> table) {
  std::sort(table.begin(), table.end(), [](const PathAlias& a, const PathAlias& b) {
    return a.alias.size() != b.alias.size() ? a.alias.size() > b.alias.size() : a.alias < b.alias;
  });
  for (std::size_t i = 0; i < table.size(); ++i) {
    require(!table[i].alias.empty() && (i == 0 || table[i - 1].alias != table[i].alias), "the path alias '{}' {}",
            table[i].alias, table[i].alias.empty() ? "is empty" : "is declared twice");
  }
  model.attach(std::make_shared<Table>(Table{std::move(table)}));
}

const std::vector<PathAlias>& path_aliases(const Module& model) {
  static const std::vector<PathAlias> kNone;
  const auto table = model.attachment<Table>();
  return table == nullptr ? kNone : table->entries;
}

std::optional<std::string> resolve_path(Module& model, std::string_view path) {
  if (model.find(path) != nullptr) return std::string(path);
  for (const PathAlias& entry : path_aliases(model)) {
    const auto real = replaced(path, entry.alias, entry.path);
    if (real && model.find(*real) != nullptr) return real;
  }
  return std::nullopt;
}

std::vector<std::string> other_names(const Module& model, std::string_view path) {
  std::vector<std::string> names;
  for (const PathAlias& entry : path_aliases(model)) {
    if (auto name = replaced(path, entry.path, entry.alias)) names.push_back(std::move(*name));
  }
  return names;
}

}  // namespace loom::nn
