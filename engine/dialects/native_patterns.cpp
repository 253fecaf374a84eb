#include "engine/dialects/native_patterns.h"

#include <algorithm>
#include <fmt/core.h>

#include "engine/core/parse_number.h"
#include "engine/core/shown_text.h"

namespace loom::dialects {
namespace {

// What is wrong with the groups of a pattern; empty: nothing.
std::string problem_of(std::string_view pattern) {
  for (std::size_t at = pattern.find('{'); at != std::string_view::npos; at = pattern.find('{', at + 1)) {
    const std::size_t end = pattern.find('}', at);
    if (end == std::string_view::npos) return "has a { that is not closed";
    const std::string_view body = pattern.substr(at + 1, end - at - 1);
    if (body == "*") continue;
    if (body.find(',') != std::string_view::npos) return "has a comma in braces; write one pattern for each range";
    const std::size_t dash = body.find('-');
    const auto first = parse_number<int>(body.substr(0, dash));
    const auto last = dash == std::string_view::npos ? first : parse_number<int>(body.substr(dash + 1));
    if (!first || !last || *first < 0) return fmt::format("has {{{}}}; write {{*}} or a range such as {{0-3}}", body);
    if (*first > *last)
      return fmt::format("has {{{}}}, whose end is below its begin; write {{{}-{}}}", body, *last, *first);
  }
  return {};
}

bool is_entry_of_ours(std::string_view pattern) {
  if (pattern.find('?') != std::string_view::npos || std::ranges::count(pattern, '{') > 1) return false;
  for (std::size_t at = pattern.find('*'); at != std::string_view::npos; at = pattern.find('*', at + 1)) {
    if (at == 0 || pattern[at - 1] != '{') return false;
  }
  return true;
}

// Where a group that begins at `pattern` ends in it, and how many of the first characters of `path` its number has; 0:
// it does not match there. A group takes all digits that follow.
struct Group {
  std::size_t length;
  std::size_t digits;
};
Group match_group(std::string_view pattern, std::string_view path) {
  const std::size_t end = pattern.find('}');
  const std::string_view body = pattern.substr(1, end - 1);
  const std::size_t digits = std::min(path.find_first_not_of("0123456789"), path.size());
  const auto number = parse_number<std::int64_t>(path.substr(0, digits));
  if (!number) return {end + 1, 0};
  if (body == "*") return {end + 1, digits};
  const std::size_t dash = body.find('-');
  const auto first = parse_number<std::int64_t>(body.substr(0, dash));
  const auto last = dash == std::string_view::npos ? first : parse_number<std::int64_t>(body.substr(dash + 1));
  return {end + 1, *number >= *first && *number <= *last ? digits : 0};
}

// Steps back to the last * only: a later * can take what an earlier one could have.
bool matches(std::string_view pattern, std::string_view path) {
  std::size_t p = 0, at = 0, star = std::string_view::npos, resumed = 0;
  while (at < path.size() || p < pattern.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resumed = at;
      continue;
    }
    if (p < pattern.size() && at < path.size()) {
      if (pattern[p] == '{') {
        const Group group = match_group(pattern.substr(p), path.substr(at));
        if (group.digits > 0) {
          p += group.length;
          at += group.digits;
          continue;
        }
      } else if (pattern[p] == '?' || pattern[p] == path[at]) {
        ++p;
        ++at;
        continue;
      }
    }
    if (star == std::string_view::npos || resumed >= path.size()) return false;
    p = star + 1;
    at = ++resumed;
  }
  return true;
}

void add_selected(Reading& reading, std::string_view key, const std::string& pattern, job::Texts& entries) {
  const ModelTree* model = reading.model();
  if (model == nullptr) {
    reading.miss(key, fmt::format("the paths that '{}' selects follow from the model; give one that is built",
                                  shown_text(pattern)));
    return;
  }
  std::vector<std::string> paths;
  for (const TreeModule& module : model->modules()) {
    if (module.has_forward && matches(pattern, module.path)) paths.push_back(module.path);
  }
  if (paths.empty() && key != "parallel.fsdp_plan.ignored_modules" && key != "parallel.ignored_modules") {
    reading.refuse(
        key, fmt::format("'{}' matches no module; see the paths in model.safetensors.index.json", shown_text(pattern)));
  }
  for (std::string& entry : patterns_of(paths, *model)) {
    if (std::ranges::find(entries, entry) == entries.end()) entries.push_back(std::move(entry));
  }
}

bool selects(const ModelTree& model, std::string_view pattern) {
  const auto begins = [&](const std::string& alias) { return pattern.starts_with(alias); };
  return std::ranges::any_of(model.aliases(), begins) ||
         std::ranges::any_of(model.modules(), [&](const TreeModule& module) { return matches(pattern, module.path); });
}

// The tools skip an entry that selects nothing beside others. A recorded class may lack a module that their own has
// (`mtp`), so its plan leaves the entry out and says so.
void leave_out_absent(Reading& reading, std::string_view key, job::Texts& entries) {
  const ModelTree* model = reading.context().flag("--model-graph") ? reading.model() : nullptr;
  if (model == nullptr) return;
  const auto is_absent = [&](const std::string& entry) { return !selects(*model, entry); };
  if (std::ranges::all_of(entries, is_absent)) return;
  for (const std::string& entry : entries) {
    if (!is_absent(entry)) continue;
    reading.note(
        fmt::format("{}: '{}' selects nothing in the recorded model; left out, as there", key, shown_text(entry)));
  }
  std::erase_if(entries, is_absent);
}

}  // namespace

job::Texts read_patterns(Reading& reading, std::string_view key) {
  job::Texts entries;
  for (const std::string& pattern : reading.texts(key)) {
    const std::string problem = problem_of(pattern);
    if (!problem.empty()) {
      reading.refuse(key, fmt::format("'{}' {}", shown_text(pattern), problem));
    } else if (is_entry_of_ours(pattern)) {
      entries.push_back(pattern);
    } else {
      add_selected(reading, key, pattern, entries);
    }
  }
  leave_out_absent(reading, key, entries);
  return entries;
}

void set_patterns(Reading& reading, std::string_view name, std::string_view key) {
  const job::Texts entries = read_patterns(reading, key);
  if (!entries.empty()) reading.set_key(name, entries, key);
}

void derive_experts(Reading& r, std::string_view size, std::string_view shards, std::string_view modules) {
  const std::int64_t ranks = r.whole(size);
  if (ranks <= 1) return;
  set_patterns(r, "moe_modules", modules);
  if (r.text(shards).empty() || r.text(shards) == "null") return;
  const std::int64_t sharded = r.whole(shards);
  if (r.knows_world() && sharded * ranks == r.world()) return;
  if (sharded == 1) return r.set_key("reshard_local_experts", "false", shards);
  if (!r.knows_world()) return;
  r.refuse(shards, fmt::format("{} ranks have the same experts; write {} to shard them over all of these, or 1",
                               r.world() / ranks, r.world() / ranks));
}

}  // namespace loom::dialects
