#include "engine/text/tokenizer/word_pattern.h"

#include <oniguruma.h>

#include <string>

#include "engine/core/error.h"
#include "engine/text/tokenizer/utf8.h"

namespace loom::data {

const std::string_view kGpt2Pattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

namespace {

constexpr std::string_view kQwenPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr char32_t kClassified = 0x10000;

OnigCtype property(std::string_view name) {
  const auto* begin = reinterpret_cast<const OnigUChar*>(name.data());
  auto* first = const_cast<OnigUChar*>(begin);  // read only, whatever its type says
  const int ctype = ONIGENC_PROPERTY_NAME_TO_CTYPE(ONIG_ENCODING_UTF8, first, first + name.size());
  require(ctype >= 0, "Oniguruma has no property {}", name);
  return static_cast<OnigCtype>(ctype);
}

struct Properties {
  OnigCtype letter = property("L");
  OnigCtype number = property("N");

  bool has(char32_t code, OnigCtype ctype) const { return ONIGENC_IS_CODE_CTYPE(ONIG_ENCODING_UTF8, code, ctype) != 0; }
};

const Properties& properties() {
  static const Properties made;
  return made;
}

char lower(char letter) { return letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a') : letter; }

}  // namespace

std::optional<WordPattern> WordPattern::of(std::string_view regex) {
  if (regex == kGpt2Pattern) return WordPattern(Kind::kGpt2, 0);
  if (regex == kQwenPattern) return WordPattern(Kind::kQwen, 1);
  if (regex == kLlama3Pattern) return WordPattern(Kind::kQwen, 3);
  return std::nullopt;
}

namespace {

template <class Class>
Class classify(char32_t code) {
  const Properties& known = properties();
  if (code == '\r' || code == '\n') return Class::kNewline;
  if (known.has(code, known.letter)) return Class::kLetter;
  if (known.has(code, known.number)) return Class::kNumber;
  return known.has(code, ONIGENC_CTYPE_SPACE) ? Class::kSpace : Class::kOther;
}

}  // namespace

WordPattern::WordPattern(Kind kind, int most_digits) : kind_(kind), most_digits_(most_digits), classes_(kClassified) {
  for (char32_t code = 0; code < kClassified; ++code) classes_[code] = classify<Class>(code);
}

inline WordPattern::Next WordPattern::next(std::string_view text, std::size_t at) const {
  const auto byte = static_cast<unsigned char>(text[at]);
  if (byte < 0x80) return {classes_[byte], 1};
  const Character character = character_at(text, at);
  if (character.code < kClassified) return {classes_[character.code], character.bytes};
  return {classify<Class>(character.code), character.bytes};
}

inline std::size_t WordPattern::run_end(std::string_view text, std::size_t at, Class kind) const {
  while (at < text.size()) {
    const Next here = next(text, at);
    if (here.kind != kind) break;
    at += here.bytes;
  }
  return at;
}

// \s*[\r\n]+ when to_last_newline, then \s+(?!\S), then \s+; a space is at `at`.
std::size_t WordPattern::space_end(std::string_view text, std::size_t at, bool to_last_newline) const {
  std::size_t end = at;
  std::size_t before_last = at;
  std::size_t after_newline = 0;
  while (end < text.size()) {
    const Next here = next(text, end);
    if (here.kind != Class::kSpace && here.kind != Class::kNewline) break;
    before_last = end;
    end += here.bytes;
    if (here.kind == Class::kNewline) after_newline = end;
  }
  if (to_last_newline && after_newline != 0) return after_newline;
  if (end == text.size() || before_last == at) return end;
  return before_last;
}

std::size_t WordPattern::contraction_bytes(std::string_view text, std::size_t at) const {
  if (text[at] != '\'' || at + 1 >= text.size()) return 0;
  const bool any_case = kind_ == Kind::kQwen;
  const auto letter = [&](std::size_t i) {
    if (i >= text.size()) return '\0';
    return any_case ? lower(text[i]) : text[i];
  };
  const char first = letter(at + 1);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
  const char second = letter(at + 2);
  if ((first == 'r' && second == 'e') || (first == 'v' && second == 'e') || (first == 'l' && second == 'l')) return 3;
  // U+017F, which folds to s.
  return any_case && text.substr(at + 1).starts_with("\xc5\xbf") ? 3 : 0;
}

std::size_t WordPattern::digits_end(std::string_view text, std::size_t at) const {
  for (int digits = 0; digits < most_digits_ && at < text.size(); ++digits) {
    const Next here = next(text, at);
    if (here.kind != Class::kNumber) break;
    at += here.bytes;
  }
  return at;
}

std::size_t WordPattern::gpt2_end(std::string_view text, std::size_t at) const {
  if (const std::size_t bytes = contraction_bytes(text, at)) return at + bytes;
  const Next first = next(text, at);
  if (first.kind == Class::kSpace || first.kind == Class::kNewline) {
    const std::size_t after = at + 1;
    if (text[at] == ' ' && after < text.size()) {
      const Class word = next(text, after).kind;
      if (word != Class::kSpace && word != Class::kNewline) return run_end(text, after, word);
    }
    return space_end(text, at, false);
  }
  return run_end(text, at + first.bytes, first.kind);
}

std::size_t WordPattern::qwen_end(std::string_view text, std::size_t at) const {
  if (const std::size_t bytes = contraction_bytes(text, at)) return at + bytes;
  const Next first = next(text, at);
  const std::size_t after = at + first.bytes;
  if (first.kind == Class::kLetter) return run_end(text, after, Class::kLetter);
  if (first.kind == Class::kNumber) return digits_end(text, at);
  const Class second = after < text.size() ? next(text, after).kind : Class::kNewline;
  if (first.kind != Class::kNewline && second == Class::kLetter) return run_end(text, after, Class::kLetter);
  const bool space_and_others = text[at] == ' ' && after < text.size() && second == Class::kOther;
  if (first.kind == Class::kOther || space_and_others) {
    return run_end(text, run_end(text, after, Class::kOther), Class::kNewline);
  }
  return space_end(text, at, true);
}

std::size_t WordPattern::match_end(std::string_view text, std::size_t at) const {
  return kind_ == Kind::kGpt2 ? gpt2_end(text, at) : qwen_end(text, at);
}

}  // namespace loom::data
