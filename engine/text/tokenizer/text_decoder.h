// TextDecoder: the steps that turn tokens into text, by tokenizer.json. Private to engine/text.
//
// Read     ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace, Sequence; null puts a space between tokens.
// Bounds   100 steps; from tokens of n bytes Replace makes at most 64 KiB + 32 n at once.
// Threads  TextDecoder is a constant; a DecodeRun belongs to one thread.
// Errors   ConfigError with file and key for another type.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/text/tokenizer/metaspace.h"
#include "engine/text/tokenizer/normalizer.h"

namespace loom::data {

class TextDecoder {
 public:
  // The decoder of a file without one.
  TextDecoder() : steps_{Spaced{}} {}
  explicit TextDecoder(const JsonNode& node);

  struct Spaced {};
  struct ByteLevel {};
  struct ByteFallback {};
  struct Fuse {};
  // At most this many of `content` at the two ends of each token; of the whole text after Fuse or ByteLevel.
  struct Strip {
    std::string content;
    std::size_t start = 0;
    std::size_t stop = 0;
  };
  using Step = std::variant<Spaced, ByteLevel, Replacement, ByteFallback, Fuse, Strip, Metaspace>;

  const std::vector<Step>& steps() const { return steps_; }

 private:
  void add(const JsonNode& node);

  std::vector<Step> steps_;
};

// One text, token by token. Undecided bytes are held back: an unfinished character, a run
// of <0xHH>, and the whole text if a step after Fuse needs it all.
class DecodeRun {
 public:
  explicit DecodeRun(const TextDecoder& decoder);

  // The text that is final now.
  std::string push(std::string_view token);
  // The rest; no push() may follow.
  std::string finish();

 private:
  struct State {
    std::string held;
    bool begun = false;
  };

  void push(std::size_t step, std::string_view token);
  void finish(std::size_t step);
  void take(const TextDecoder::Spaced& step, std::size_t index, std::string_view token);
  void take(const TextDecoder::ByteLevel& step, std::size_t index, std::string_view token);
  void take(const Replacement& step, std::size_t index, std::string_view token);
  void take(const TextDecoder::ByteFallback& step, std::size_t index, std::string_view token);
  void take(const TextDecoder::Fuse& step, std::size_t index, std::string_view token);
  void take(const TextDecoder::Strip& step, std::size_t index, std::string_view token);
  void take(const Metaspace& step, std::size_t index, std::string_view token);
  void end_bytes(std::size_t index);

  const TextDecoder& decoder_;
  std::vector<State> states_;
  std::string text_;
  std::size_t pushed_ = 0;  // bytes
  RegexScratch scratch_;
};

}  // namespace loom::data
