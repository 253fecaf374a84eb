// Regex: a pattern of Oniguruma, the engine of Hugging Face's library: UTF-8, its default syntax, no options.
// Private to engine/data.
//
// Bounds   a pattern has at most 8192 bytes; a match takes at most 10 million retries (as there), a search 50 million.
// Threads  a Regex may be searched by all; a RegexScratch belongs to one thread.
// Errors   ConfigError that begins with `where`, the pattern's file and key.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace loom::data {

struct Range {
  std::size_t begin = 0;
  std::size_t end = 0;
};

class RegexScratch {
 public:
  RegexScratch();
  ~RegexScratch();
  RegexScratch(const RegexScratch&) = delete;
  RegexScratch& operator=(const RegexScratch&) = delete;

 private:
  friend class Regex;
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
  std::shared_ptr<void> compiled_;
};

}  // namespace loom::data
