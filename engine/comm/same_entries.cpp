#include "engine/comm/same_entries.h"

#include <algorithm>
#include <fmt/format.h>
#include <map>

#include "engine/comm/exchange.h"
#include "engine/core/error.h"
#include "engine/core/shown_text.h"

namespace loom::comm {
namespace {

constexpr std::size_t kReported = 8;  // differences that are written out

// An entry as one line: no key holds a tab, no value an end of line.
std::string to_line(const SaidEntry& entry) {
  return fmt::format("{}\t{}\t{}", entry.key, entry.is_item ? "item" : "value", entry.value);
}

SaidEntry to_entry(const std::string& line) {
  const std::size_t kind = line.find('\t');
  const std::size_t value = line.find('\t', kind + 1);
  return {line.substr(0, kind), line.substr(value + 1), line.substr(kind + 1, value - kind - 1) == "item"};
}

// "rank 3", "ranks 0-2,5"
std::string in_words(const std::vector<int>& ranks) {
  std::vector<std::string> runs;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    runs.push_back(end == i + 1 ? std::to_string(ranks[i]) : fmt::format("{}-{}", ranks[i], ranks[end - 1]));
    i = end;
  }
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(runs, ","));
}

struct Said {
  std::string value;
  std::vector<int> ranks;
};

// The values of each key and each item on the ranks, in the order of their first occurrence.
class Comparison {
 public:
  void add(int rank, const SaidEntry& entry) { said_of(entry).ranks.push_back(rank); }

  // One text a key or item on which ranks differ.
  std::vector<std::string> differences(int ranks) const {
    std::vector<std::string> texts;
    for (const Subject& subject : subjects_) {
      if (subject.said.front().ranks.size() == static_cast<std::size_t>(ranks)) continue;
      texts.push_back(subject.is_item ? difference_in_item(subject, ranks) : difference_in_value(subject));
    }
    return texts;
  }

 private:
  struct Subject {
    std::string key;
    bool is_item;
    std::vector<Said> said;
  };

  Said& said_of(const SaidEntry& entry) {
    const std::string name = entry.is_item ? entry.key + "\t" + entry.value : entry.key;
    const auto [found, is_new] = index_.try_emplace(name, subjects_.size());
    if (is_new) subjects_.push_back({entry.key, entry.is_item, {}});
    std::vector<Said>& said = subjects_[found->second].said;
    const auto same = std::ranges::find(said, entry.value, &Said::value);
    return same == said.end() ? said.emplace_back(Said{entry.value, {}}) : *same;
  }

  static std::string difference_in_value(const Subject& subject) {
    std::vector<std::string> parts;
    for (const Said& said : subject.said) {
      parts.push_back(fmt::format("{} {} {}", in_words(said.ranks), said.ranks.size() == 1 ? "has" : "have",
                                  shown_text(said.value)));
    }
    return fmt::format("{}: {}", subject.key, fmt::join(parts, ", "));
  }

  static std::string difference_in_item(const Subject& subject, int ranks) {
    const Said& said = subject.said.front();
    std::vector<int> others;
    for (int rank = 0; rank < ranks; ++rank) {
      if (std::ranges::find(said.ranks, rank) == said.ranks.end()) others.push_back(rank);
    }
    return fmt::format("{}: {} {} '{}', {} {} not", subject.key, in_words(said.ranks),
                       said.ranks.size() == 1 ? "lists" : "list", shown_text(said.value), in_words(others),
                       others.size() == 1 ? "does" : "do");
  }

  std::vector<Subject> subjects_;
  std::map<std::string, std::size_t> index_;
};

}  // namespace

void check_same_entries(const std::vector<SaidEntry>& entries, ProcessGroup& everyone, const EntryWords& words) {
  std::vector<std::string> lines;
  for (const SaidEntry& entry : entries) lines.push_back(to_line(entry));
  const std::string text = fmt::format("{}", fmt::join(lines, "\n"));
  if (all_have_the_same(everyone, text, words.tag)) return;
  const auto of_ranks = exchange_lines(everyone, text, words.tag);
  Comparison comparison;
  for (std::size_t rank = 0; rank < of_ranks.size(); ++rank) {
    for (const std::string& line : of_ranks[rank]) comparison.add(static_cast<int>(rank), to_entry(line));
  }
  std::vector<std::string> differences = comparison.differences(everyone.size());
  const std::size_t count = differences.size();
  if (count > kReported) {
    differences.resize(kReported);
    differences.push_back(fmt::format("and {} more", count - kReported));
  }
  config_error("{}: {}; {}", words.differ, fmt::join(differences, "; "), words.advice);
}

}  // namespace loom::comm
