// Regular expressions that files of models bring along: tokenizer.json, adapter_config.json. Their work is bounded.
//
// Regex      a pattern that is searched for: Oniguruma with its default syntax and no options, as Hugging Face's
//            library has it.
// FullMatch  a pattern that a whole text (or a Part of it) has to match: Python's re.fullmatch(), as peft has it.
// Bounds     a pattern has at most 8192 bytes, and brackets 250 levels deep. A match takes at most 10 million retries
//            (as in Hugging Face's library), a search 50 million, a FullMatch 100 thousand. Retries do not count what a
//            pattern reads forward, so time is bounded too: all searches and matches with one RegexScratch may take 1 s
//            of a core, and 10 us for each byte that they have passed; ordinary patterns take a hundredth of it.
// Text       is UTF-8.
// Threads    a pattern may be used by all; a RegexScratch belongs to one thread.
// Errors     ConfigError that begins with `where`, the pattern's file and key, and shows the pattern.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace loom::regex {

struct Range {
  std::size_t begin = 0;
  std::size_t end = 0;
};

// Memory for searches, and the time that they have taken.
class RegexScratch {
 public:
  RegexScratch();
  ~RegexScratch();
  RegexScratch(const RegexScratch&) = delete;
  RegexScratch& operator=(const RegexScratch&) = delete;

 private:
  friend class Regex;
  friend class FullMatch;
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

class Regex {
 public:
  Regex(std::string_view pattern, std::string where);

  // The first match that begins at `from` or later.
  std::optional<Range> search(std::string_view text, std::size_t from, RegexScratch& scratch) const;

 private:
  std::string where_;
  std::string pattern_;
  std::shared_ptr<void> compiled_;
};

// The part of a text that a FullMatch's pattern has to match.
enum class Part : std::uint8_t {
  kAll,
  kBeginning,
  kLastNames,  // of a dotted path: all of it, or what is behind one of its dots
};

class FullMatch {
 public:
  FullMatch(std::string_view pattern, std::string where, Part part = Part::kAll);

  bool matches(std::string_view text, RegexScratch& scratch) const;

 private:
  std::string where_;
  std::string pattern_;
  Part part_ = Part::kAll;
  std::shared_ptr<void> compiled_;
};

}  // namespace loom::regex
