#include "engine/job/agreement.h"

#include <algorithm>
#include <fmt/format.h>

#include "engine/core/shown_text.h"

namespace loom::job {
namespace {

std::string joined(const Texts& texts) {
  Texts lines;
  for (const std::string& text : texts) lines.push_back(escaped(text));
  return texts.empty() ? "none" : fmt::format("{}", fmt::join(lines, ", "));
}

}  // namespace

std::string agreement_text(const Key& key, const Value& value) {
  if (const auto* on = std::get_if<bool>(&value); on != nullptr && !key.optional) return *on ? "the flag" : "none";
  if (const auto* text = std::get_if<std::string>(&value)) return escaped(*text);
  if (const auto* texts = std::get_if<Texts>(&value)) return joined(*texts);
  if (const auto* numbers = std::get_if<Numbers>(&value)) {
    return numbers->empty() ? "none" : fmt::format("{}", fmt::join(*numbers, ", "));
  }
  return text_of(value);
}

std::vector<comm::SaidEntry> agreement_entries(const Job& job) {
  std::vector<comm::SaidEntry> entries;
  for (const Key& key : keys()) {
    // A program's own flag replaces a key of that name.
    if (key.agreement == Agreement::kNone || is_added(job.written, key.name())) continue;
    const std::string text = agreement_text(key, key.get(job));
    entries.push_back(
        {std::string(key.name()), key.agreement == Agreement::kContent && text != "none" ? "the flag" : text});
  }
  for (const auto& [flag, value] : job.written.added_flags) entries.push_back({flag, escaped(value)});
  return entries;
}

}  // namespace loom::job
