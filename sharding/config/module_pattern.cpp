#include "sharding/config/module_pattern.h"

#include <algorithm>
#include <charconv>
#include <fmt/format.h>
#include <set>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/core/spelling.h"

namespace loom::sharding {
namespace {

using Range = ModulePattern::Range;

constexpr std::string_view kIndexForms = "write {*}, {0-23} or {0-3,8}";

// The begin of every message about a pattern.
struct Subject {
  std::string_view text;
  std::string_view key;
  const SourceMark& mark;

  std::string head() const { return fmt::format("{}: {}: '{}'", mark.text(), key, shown_text(text)); }
};

Subject subject_of(const ModulePattern& pattern) { return {pattern.text(), pattern.key(), pattern.mark()}; }

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(' ');
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(' ') - first + 1);
}

std::string join(std::string_view path, std::string_view name) {
  if (path.empty()) return std::string(name);
  return name.empty() ? std::string(path) : fmt::format("{}.{}", path, name);
}

std::string printed(const Range& range) {
  return range.first == range.last ? fmt::to_string(range.first) : fmt::format("{}-{}", range.first, range.last);
}

// --- Parsing

void check_path(std::string_view path, const Subject& subject) {
  const auto stray = path.find_first_of(" \t\r\n*?[]()\\/\"',:;");
  if (stray != std::string_view::npos) {
    config_error("{} has '{}' in a module name; {}", subject.head(), path[stray],
                 path[stray] == '*' ? "all entries of a container are written {*}, as in layers.{*}"
                                    : "write module names separated by dots, as in model.layers.{*}");
  }
  if (path.empty() || path.front() == '.' || path.back() == '.' || path.find("..") != std::string_view::npos) {
    config_error("{} has an empty module name; write names separated by single dots, as in model.layers.{{*}}",
                 subject.head());
  }
}

int parse_index(std::string_view text, std::string_view item, const Subject& subject) {
  const std::string_view digits = trimmed(text);
  int index = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), index);
  if (error == std::errc::result_out_of_range) {
    config_error("{} has the index {}, which no container reaches; {}", subject.head(), digits, kIndexForms);
  }
  if (error != std::errc{} || end != digits.data() + digits.size() || index < 0) {
    config_error("{} has '{}' between its braces, which is neither an index nor a range; {}", subject.head(), item,
                 kIndexForms);
  }
  return index;
}

Range parse_item(std::string_view written, const Subject& subject) {
  const std::string_view item = trimmed(written);
  if (item.empty()) config_error("{} has an empty item between its braces; {}", subject.head(), kIndexForms);
  if (item == "*") config_error("{} has '*' beside other items; write {{*}} alone for all entries", subject.head());
  if (item.front() == '-') config_error("{} has the negative item '{}'; indices start at 0", subject.head(), item);
  const auto dash = item.find('-');
  const int first = parse_index(item.substr(0, dash), item, subject);
  return {first, dash == std::string_view::npos ? first : parse_index(item.substr(dash + 1), item, subject)};
}

// Drops a > b, sorts, and joins what overlaps or touches.
std::vector<Range> union_of(std::vector<Range> ranges) {
  std::erase_if(ranges, [](const Range& r) { return r.first > r.last; });
  std::ranges::sort(ranges, {}, &Range::first);
  std::vector<Range> merged;
  for (const Range& range : ranges) {
    if (!merged.empty() && range.first - 1 <= merged.back().last) {
      merged.back().last = std::max(merged.back().last, range.last);
    } else {
      merged.push_back(range);
    }
  }
  return merged;
}

std::vector<Range> parse_items(std::string_view body, const Subject& subject) {
  std::vector<Range> ranges;
  for (std::size_t begin = 0;;) {
    const auto comma = body.find(',', begin);
    ranges.push_back(parse_item(body.substr(begin, comma - begin), subject));
    if (comma == std::string_view::npos) return union_of(std::move(ranges));
    begin = comma + 1;
  }
}

void check_braces(std::string_view text, const Subject& subject) {
  const auto opened = std::ranges::count(text, '{');
  const auto closed = std::ranges::count(text, '}');
  if (opened > 1 || closed > 1) {
    config_error("{} has more than one brace group; write one entry for each value of the first group", subject.head());
  }
  if (opened != closed) {
    config_error("{} has '{}' without '{}'; {}", subject.head(), opened > closed ? '{' : '}',
                 opened > closed ? '}' : '{', kIndexForms);
  }
  if (opened == 1 && text.find('{') > text.find('}')) {
    config_error("{} has '}}' before '{{'; {}", subject.head(), kIndexForms);
  }
}

// --- Hints

bool ends_with_path(std::string_view path, std::string_view tail) {
  return path.size() > tail.size() && path.ends_with(tail) && path[path.size() - tail.size() - 1] == '.';
}

// The existing path the user most likely meant: the same names under another parent (the shortest such path), else the
// nearest spelling.
std::optional<std::string> nearest_path(std::string_view wanted, const std::vector<std::string>& known) {
  std::optional<std::string> moved;
  for (const std::string& path : known) {
    const bool same_names = ends_with_path(path, wanted) || ends_with_path(wanted, path);
    if (same_names && (!moved || path.size() < moved->size())) moved = path;
  }
  return moved ? moved : nearest_spelling(wanted, known);
}

std::vector<std::string> children_of(std::string_view parent, const std::vector<std::string>& known) {
  std::vector<std::string> children;
  for (const std::string& path : known) {
    const auto dot = path.rfind('.');
    const std::string_view above =
        dot == std::string::npos ? std::string_view{} : std::string_view(path).substr(0, dot);
    if (above == parent) children.push_back(path.substr(dot == std::string::npos ? 0 : dot + 1));
  }
  return children;
}

// The longest beginning of `path` that exists; "" is the model itself.
std::string_view existing_part(std::string_view path, const ModuleTreeView& tree) {
  while (!path.empty() && !tree.real_path(path)) {
    const auto dot = path.rfind('.');
    path = dot == std::string_view::npos ? std::string_view{} : path.substr(0, dot);
  }
  return path;
}

// "the nearest path is 'x'", else the children of the existing part of the path.
std::string path_hint(std::string_view wanted, const ModuleTreeView& tree) {
  constexpr std::size_t kListed = 8;
  const std::vector<std::string> known = tree.known_paths();
  if (const auto nearest = nearest_path(wanted, known)) return fmt::format("the nearest path is '{}'", *nearest);
  const std::string_view existing = existing_part(wanted, tree);
  const std::string parent = existing.empty() ? std::string() : *tree.real_path(existing);
  const std::string holder = parent.empty() ? "the model" : fmt::format("'{}'", parent);
  std::vector<std::string> children = children_of(parent, known);
  if (children.empty()) return fmt::format("{} holds no modules", holder);
  const bool cut = children.size() > kListed;
  if (cut) children.resize(kListed);
  return fmt::format("{} holds {}{}", holder, fmt::join(children, ", "), cut ? ", ..." : "");
}

// For a name that looks like a class: the classes; the nearest one in any case of letters.
std::string class_hint(std::string_view wanted, const std::vector<std::string>& classes) {
  constexpr std::size_t kListed = 24;
  std::vector<std::string> lowered;
  std::ranges::transform(classes, std::back_inserter(lowered), lower_case);
  const auto nearest = nearest_spelling(lower_case(wanted), lowered);
  const std::string meant =
      nearest ? fmt::format("did you mean {}? ",
                            classes[static_cast<std::size_t>(std::ranges::find(lowered, *nearest) - lowered.begin())])
              : "";
  const std::size_t listed = std::min(kListed, classes.size());
  return fmt::format("{}the model's classes are {}{}", meant,
                     fmt::join(classes.begin(), classes.begin() + static_cast<std::ptrdiff_t>(listed), ", "),
                     listed < classes.size() ? ", ..." : "");
}

bool looks_like_class(std::string_view name) { return !name.empty() && name.front() >= 'A' && name.front() <= 'Z'; }

// --- Expansion

struct Named {
  std::string path;     // real
  std::string written;  // the same, or with the alias that led there
};

// 'model.layers', or 'model.layers' (written 'text_decoder.layers').
std::string quoted(const Named& module) {
  if (module.path == module.written) return fmt::format("'{}'", module.path);
  return fmt::format("'{}' (written '{}')", module.path, module.written);
}

// The modules that one entry selects, and the names in it that match no module.
struct Selection {
  std::vector<Named> found;
  std::vector<Named> missing;  // inside the container, but without the tail
  std::vector<Range> past_end;
};

struct Container {
  Named name;
  int size = 0;
};

Container container_of(const ModulePattern& pattern, const ModuleTreeView& tree) {
  const std::string head = subject_of(pattern).head();
  const auto path = tree.real_path(pattern.prefix());
  if (!path) {
    config_error("{}: there is no '{}' in the model; {}", head, shown_text(pattern.prefix()),
                 path_hint(pattern.prefix(), tree));
  }
  const Named name{*path, pattern.prefix()};
  const auto size = tree.container_size(*path);
  if (!size) config_error("{}: {} is a single module, not a list of modules; remove the braces", head, quoted(name));
  return {name, *size};
}

Named entry_of(const Container& container, int index, const std::string& tail) {
  const std::string number = fmt::to_string(index);
  return {join(join(container.name.path, number), tail), join(join(container.name.written, number), tail)};
}

Selection select(const ModulePattern& pattern, const Container& container, const ModuleTreeView& tree) {
  Selection selection;
  const int size = container.size;
  const std::vector<Range> all = {{0, size - 1}};
  for (const Range& range : pattern.kind() == ModulePattern::Kind::kAll ? all : pattern.ranges()) {
    for (int index = range.first; index <= std::min(range.last, size - 1); ++index) {
      Named entry = entry_of(container, index, pattern.tail());
      auto& list = tree.exists(entry.path) ? selection.found : selection.missing;
      list.push_back(std::move(entry));
    }
    if (range.last >= size) selection.past_end.push_back({std::max(range.first, size), range.last});
  }
  return selection;
}

std::string entries(int size) { return size == 1 ? "1 entry, 0" : fmt::format("{} entries, 0 to {}", size, size - 1); }

[[noreturn]] void refuse_empty(const ModulePattern& pattern, const Container& container, const Selection& selection,
                               const ModuleTreeView& tree) {
  const std::string head = subject_of(pattern).head();
  if (!selection.missing.empty()) {
    config_error("{} matches nothing: there is no {} in the model; {}", head, quoted(selection.missing.front()),
                 path_hint(selection.missing.front().path, tree));
  }
  if (container.size == 0) {
    config_error("{} matches nothing: {} is empty; remove the entry", head, quoted(container.name));
  }
  if (pattern.ranges().empty()) {
    config_error("{} selects no index: the smaller number of a range comes first; {}", head, kIndexForms);
  }
  config_error("{} matches nothing: {} has {}; use indices among these", head, quoted(container.name),
               entries(container.size));
}

void warn_of_rest(const ModulePattern& pattern, const Container& container, const Selection& selection,
                  std::vector<std::string>& warnings) {
  const std::string head = subject_of(pattern).head();
  if (!selection.past_end.empty()) {
    std::vector<std::string> skipped;
    std::ranges::transform(selection.past_end, std::back_inserter(skipped), printed);
    warnings.push_back(fmt::format("{}: {} has {}; {} skipped", head, quoted(container.name), entries(container.size),
                                   fmt::join(skipped, ",")));
  }
  if (!selection.missing.empty()) {
    warnings.push_back(fmt::format(
        "{}: there is no {} in the model{}; skipped", head, quoted(selection.missing.front()),
        selection.missing.size() == 1 ? "" : fmt::format(" (nor {} more of the entry)", selection.missing.size() - 1)));
  }
}

std::vector<Named> expand_path(const ModulePattern& pattern, const ModuleTreeView& tree) {
  const std::string& path = pattern.prefix();
  if (auto real = tree.real_path(path)) return {{std::move(*real), path}};
  const std::string_view class_name = std::string_view(path).substr(path.rfind('.') + 1);
  std::vector<Named> found;
  for (const std::string& of_class : tree.paths_of_class(class_name)) found.push_back({of_class, of_class});
  if (!found.empty()) return found;
  const std::vector<std::string> classes = tree.known_classes();
  if (looks_like_class(class_name) && !classes.empty()) {
    config_error("{}: there is no such class in the model; {}", subject_of(pattern).head(),
                 class_hint(class_name, classes));
  }
  config_error("{}: there is no such module; {}", subject_of(pattern).head(), path_hint(path, tree));
}

std::vector<Named> expand_one(const ModulePattern& pattern, const ModuleTreeView& tree,
                              std::vector<std::string>& warnings) {
  if (pattern.kind() == ModulePattern::Kind::kPath) return expand_path(pattern, tree);
  const Container container = container_of(pattern, tree);
  Selection selection = select(pattern, container, tree);
  if (selection.found.empty()) refuse_empty(pattern, container, selection, tree);
  warn_of_rest(pattern, container, selection, warnings);
  return std::move(selection.found);
}

}  // namespace

ModulePattern ModulePattern::parse(std::string_view text, std::string_view key, const SourceMark& mark) {
  const Subject subject{text, key, mark};
  if (text.empty()) {
    config_error("{} is empty and would mean the model itself; name a module or remove the entry", subject.head());
  }
  check_braces(text, subject);
  ModulePattern pattern;
  pattern.text_ = text;
  pattern.key_ = key;
  pattern.mark_ = mark;
  const auto open = text.find('{');
  std::string_view prefix = text.substr(0, open);
  if (open == 0) {
    config_error("{} begins with a brace; write the container before it, as in layers.{}", subject.head(), text);
  }
  if (open != std::string_view::npos) {
    const auto close = text.find('}');
    const std::string_view body = text.substr(open + 1, close - open - 1);
    std::string_view tail = text.substr(close + 1);
    if (prefix.ends_with('.')) prefix.remove_suffix(1);
    if (!tail.empty()) {
      if (tail.front() == '.') tail.remove_prefix(1);
      check_path(tail, subject);
    }
    pattern.kind_ = body == "*" ? Kind::kAll : Kind::kIndices;
    pattern.tail_ = tail;
    if (pattern.kind_ == Kind::kIndices) pattern.ranges_ = parse_items(body, subject);
  }
  check_path(prefix, subject);
  pattern.prefix_ = prefix;
  return pattern;
}

long long ModulePattern::index_count() const {
  long long count = 0;
  for (const Range& range : ranges_) count += static_cast<long long>(range.last) - range.first + 1;
  return count;
}

ModuleExpansion expand(std::span<const ModulePattern> patterns, const ModuleTreeView& tree) {
  ModuleExpansion expansion;
  std::set<std::string> seen;
  for (const ModulePattern& pattern : patterns) {
    for (Named& module : expand_one(pattern, tree, expansion.warnings)) {
      if (!seen.insert(module.path).second) continue;
      if (module.path != module.written) expansion.written_as[module.path] = std::move(module.written);
      expansion.paths.push_back(std::move(module.path));
    }
  }
  return expansion;
}

ModuleExpansion expand(const ModulePattern& pattern, const ModuleTreeView& tree) { return expand({&pattern, 1}, tree); }

}  // namespace loom::sharding
