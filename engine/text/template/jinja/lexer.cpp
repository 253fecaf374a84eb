#include "engine/text/template/jinja/lexer.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include "engine/core/shown_text.h"
#include "engine/text/template/jinja/text.h"
#include "engine/text/tokenizer/utf8.h"

namespace loom::data::jinja {
namespace {

constexpr std::array<std::string_view, 26> kOperators = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                                         "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                                         ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};

// Every end of line as \n; one at the end of the text goes.
std::string with_plain_lines(std::string_view text) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\r') {
      result += '\n';
      if (i + 1 < text.size() && text[i + 1] == '\n') ++i;
    } else {
      result += text[i];
    }
  }
  if (result.ends_with('\n')) result.pop_back();
  return result;
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool continues_name(char32_t code) { return is_word_character(code); }

class Lexer {
 public:
  explicit Lexer(std::string_view text) : source_(with_plain_lines(text)), rest_(source_) {}

  std::vector<Token> run() {
    while (!rest_.empty()) read_text();
    add(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void refuse(const std::string& message) const { throw SyntaxError(line_, message); }

  void add(TokenKind kind, std::string text) {
    tokens_.push_back({.kind = kind, .line = line_, .text = std::move(text)});
  }

  // Takes `bytes` of the rest.
  std::string_view take(std::size_t bytes) {
    const auto taken = rest_.substr(0, bytes);
    line_ += static_cast<int>(std::ranges::count(taken, '\n'));
    if (!taken.empty()) at_line_begin_ = taken.back() == '\n';
    rest_.remove_prefix(bytes);
    return taken;
  }
  void skip_spaces() { take(rest_.size() - strip_left(rest_).size()); }

  char sign_at(std::size_t at) const {
    return at < rest_.size() && (rest_[at] == '-' || rest_[at] == '+') ? rest_[at] : '\0';
  }

  // The text before a tag, without the white space that the tag takes away.
  std::string_view trimmed(std::string_view text, char sign, bool strips_line) const {
    if (sign == '-') return strip_right(text);
    if (sign == '+' || !strips_line) return text;
    const std::size_t line = text.rfind('\n') == std::string_view::npos ? 0 : text.rfind('\n') + 1;
    const bool at_begin = line > 0 || at_line_begin_;
    return at_begin && strip_left(text.substr(line)).empty() ? text.substr(0, line) : text;
  }

  void add_text(std::string_view text) {
    if (!text.empty()) add(TokenKind::kText, std::string(text));
  }

  // Text up to the next tag, and that tag.
  void read_text() {
    std::size_t at = 0;
    while (at < rest_.size() && !is_tag(at)) ++at;
    if (at == rest_.size()) {
      add_text(rest_);
      take(at);
      return;
    }
    const char kind = rest_[at + 1];
    const char sign = sign_at(at + 2);
    add_text(trimmed(rest_.substr(0, at), sign, kind != '{'));
    take(at);
    if (const auto raw = raw_begin()) return read_raw(*raw);
    take(2 + (sign == '\0' ? 0 : 1));
    if (kind == '#') return read_comment();
    add(kind == '{' ? TokenKind::kPrintBegin : TokenKind::kBlockBegin, "");
    read_tag(kind == '{');
  }

  bool is_tag(std::size_t at) const {
    if (rest_[at] != '{' || at + 1 >= rest_.size()) return false;
    return rest_[at + 1] == '{' || rest_[at + 1] == '%' || rest_[at + 1] == '#';
  }

  // "{%-", white space, `word`, white space: how many bytes that is at `at`.
  std::optional<std::size_t> word_tag(std::size_t at, std::string_view word) const {
    if (rest_.substr(at, 2) != "{%") return std::nullopt;
    std::string_view text = rest_.substr(at + 2);
    if (!text.empty() && (text[0] == '-' || text[0] == '+')) text.remove_prefix(1);
    text = strip_left(text);
    if (!text.starts_with(word)) return std::nullopt;
    text = strip_left(text.substr(word.size()));
    return rest_.size() - at - text.size();
  }

  // The end of a tag at the beginning of `text`, with the white space that it takes away.
  static std::optional<std::size_t> tag_end(std::string_view text, std::string_view end, bool plus, bool trims) {
    const bool minus = text.starts_with("-") && text.substr(1).starts_with(end);
    if (minus) return text.size() - strip_left(text.substr(1 + end.size())).size();
    if (plus && text.starts_with("+") && text.substr(1).starts_with(end)) return 1 + end.size();
    if (!text.starts_with(end)) return std::nullopt;
    return end.size() + (trims && text.substr(end.size()).starts_with('\n') ? 1 : 0);
  }

  std::optional<std::size_t> raw_begin() const {
    const auto word = word_tag(0, "raw");
    if (!word) return std::nullopt;
    const auto end = tag_end(rest_.substr(*word), "%}", false, false);
    return end ? std::optional(*word + *end) : std::nullopt;
  }

  void read_raw(std::size_t begin_bytes) {
    take(begin_bytes);
    for (std::size_t at = rest_.find("{%"); at != std::string_view::npos; at = rest_.find("{%", at + 1)) {
      const auto word = word_tag(at, "endraw");
      if (!word) continue;
      const auto end = tag_end(rest_.substr(at + *word), "%}", true, true);
      if (!end) continue;
      add_text(trimmed(rest_.substr(0, at), sign_at(at + 2), true));
      take(at + *word + *end);
      return;
    }
    refuse("the end of this raw block is missing; write {% endraw %}");
  }

  void read_comment() {
    for (std::size_t at = rest_.find("#}"); at != std::string_view::npos;) {
      const bool signed_end = at > 0 && (rest_[at - 1] == '-' || rest_[at - 1] == '+');
      const std::size_t begin = signed_end ? at - 1 : at;
      take(begin + *tag_end(rest_.substr(begin), "#}", true, true));
      return;
    }
    refuse("the end of this comment is missing; write #}");
  }

  void read_tag(bool print) {
    std::string open;
    for (;;) {
      if (open.empty()) {
        const auto end = tag_end(rest_, print ? "}}" : "%}", !print, !print);
        if (end) {
          add(print ? TokenKind::kPrintEnd : TokenKind::kBlockEnd, "");
          take(*end);
          return;
        }
      }
      if (rest_.empty()) return;  // the parser says what is missing
      if (is_space(character_at(rest_, 0).code)) {
        skip_spaces();
      } else {
        read_token(open);
      }
    }
  }

  void read_token(std::string& open) {
    const char first = rest_[0];
    if (is_digit(first)) return read_number();
    if (first == '\'' || first == '"') return read_string();
    if (continues_name(character_at(rest_, 0).code)) return read_name();
    const auto* const found =
        std::ranges::find_if(kOperators, [&](std::string_view each) { return rest_.starts_with(each); });
    if (found == kOperators.end()) {
      refuse(fmt::format("'{}' is no operator of an expression; take it out",
                         shown_text(rest_.substr(0, character_at(rest_, 0).bytes))));
    }
    balance(open, (*found)[0]);
    add(TokenKind::kOperator, std::string(*found));
    take(found->size());
  }

  void balance(std::string& open, char bracket) const {
    constexpr std::string_view kOpening = "({[";
    constexpr std::string_view kClosing = ")}]";
    if (const auto at = kOpening.find(bracket); at != std::string_view::npos) open += kClosing[at];
    if (kClosing.find(bracket) == std::string_view::npos) return;
    if (open.empty()) refuse(fmt::format("'{}' closes nothing; take it out", bracket));
    if (open.back() != bracket) refuse(fmt::format("found '{}' where '{}' is expected", bracket, open.back()));
    open.pop_back();
  }

  void read_name() {
    std::size_t end = 0;
    while (end < rest_.size() && continues_name(character_at(rest_, end).code)) end += character_at(rest_, end).bytes;
    add(TokenKind::kName, std::string(rest_.substr(0, end)));
    take(end);
  }

  // Digits with single _ between them, from `at`.
  template <class IsDigit>
  std::size_t digits_end(std::size_t at, IsDigit&& digit) const {
    while (at < rest_.size() &&
           (digit(rest_[at]) || (rest_[at] == '_' && at + 1 < rest_.size() && digit(rest_[at + 1]))))
      ++at;
    return at;
  }
  std::size_t digits_end(std::size_t at) const { return digits_end(at, is_digit); }
  bool digit_at(std::size_t at) const { return at < rest_.size() && is_digit(rest_[at]); }

  void read_number() {
    if (const std::size_t end = float_end(); end > 0) return add_float(end);
    constexpr std::string_view kBases = "xob";
    const char mark = rest_.size() > 1 ? static_cast<char>(rest_[1] | 0x20) : '\0';
    if (rest_[0] == '0' && kBases.find(mark) != std::string_view::npos) {
      const int base = mark == 'x' ? 16 : mark == 'o' ? 8 : 2;
      const auto digit = [base](char c) {
        int value = 99;
        std::from_chars(&c, &c + 1, value, base);
        return value < base;
      };
      const std::size_t end = digits_end(2, digit);
      if (end > 2) return add_integer(end, 2, base);
    }
    const bool zero = rest_[0] == '0';
    add_integer(zero ? digits_end(1, [](char c) { return c == '0'; }) : digits_end(1), 0, 10);
  }

  // Where a number with a fraction or an exponent ends; 0 where there is neither.
  std::size_t float_end() const {
    std::size_t end = digits_end(0);
    bool found = false;
    if (end < rest_.size() && rest_[end] == '.' && digit_at(end + 1)) {
      end = digits_end(end + 1);
      found = true;
    }
    if (end < rest_.size() && (rest_[end] == 'e' || rest_[end] == 'E')) {
      const std::size_t digits = end + 1 < rest_.size() && (rest_[end + 1] == '+' || rest_[end + 1] == '-') ? 2 : 1;
      if (digit_at(end + digits)) {
        end = digits_end(end + digits);
        found = true;
      }
    }
    return found && (tokens_.empty() || !follows_dot()) ? end : 0;
  }
  bool follows_dot() const {
    return tokens_.back().is_operator(".") && rest_.data() > source_.data() && rest_.data()[-1] == '.';
  }

  std::string plain_digits(std::size_t end) const {
    std::string digits(rest_.substr(0, end));
    std::erase(digits, '_');
    return digits;
  }

  void add_float(std::size_t end) {
    const std::string digits = plain_digits(end);
    add(TokenKind::kFloat, digits);
    const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), tokens_.back().number);
    if (read.ec != std::errc()) refuse(fmt::format("the number {} does not fit", shown_text(digits)));
    take(end);
  }

  void add_integer(std::size_t end, std::size_t skipped, int base) {
    const std::string digits = plain_digits(end);
    add(TokenKind::kInteger, digits);
    const auto read =
        std::from_chars(digits.data() + skipped, digits.data() + digits.size(), tokens_.back().integer, base);
    if (read.ec != std::errc()) refuse(fmt::format("the number {} has more than 64 bits", shown_text(digits)));
    take(end);
  }

  void read_string() {
    std::size_t end = 1;
    while (end < rest_.size() && rest_[end] != rest_[0]) end += rest_[end] == '\\' ? 2 : 1;
    if (end >= rest_.size()) refuse("the end of this text is missing; write its quotation mark");
    const int line = line_;
    add(TokenKind::kString, unescaped(rest_.substr(1, end - 1)));
    tokens_.back().line = line;
    take(end + 1);
  }

  // Jinja writes what is not ASCII as an escape, and then resolves all escapes; so a backslash before such a character
  // stays, and its escape is text.
  std::string unescaped(std::string_view text) const {
    std::string result;
    for (std::size_t at = 0; at < text.size();) {
      if (text[at] != '\\') {
        result += text[at++];
        continue;
      }
      ++at;
      const Character next = character_at(text, at);
      if (next.code >= 0x80) {
        const auto code = static_cast<std::uint32_t>(next.code);
        result += code < 0x100     ? fmt::format("\\x{:02x}", code)
                  : code < 0x10000 ? fmt::format("\\u{:04x}", code)
                                   : fmt::format("\\U{:08x}", code);
        at += next.bytes;
      } else {
        at = unescape_one(text, at, result);
      }
    }
    return result;
  }

  std::size_t unescape_one(std::string_view text, std::size_t at, std::string& result) const {
    constexpr std::string_view kLetters = "abfnrtv\\'\"";
    constexpr std::string_view kMeanings = "\a\b\f\n\r\t\v\\'\"";
    const char letter = text[at];
    if (letter == '\n') return at + 1;
    if (const auto known = kLetters.find(letter); known != std::string_view::npos) {
      result += kMeanings[known];
      return at + 1;
    }
    if (letter >= '0' && letter <= '7') {
      std::size_t end = at;
      while (end < text.size() && end < at + 3 && text[end] >= '0' && text[end] <= '7') ++end;
      return append_code(text.substr(at, end - at), 8, result), end;
    }
    const std::size_t digits = letter == 'x' ? 2 : letter == 'u' ? 4 : letter == 'U' ? 8 : 0;
    if (digits > 0) {
      if (text.size() - at - 1 < digits) refuse(fmt::format("the escape \\{} lacks digits", letter));
      append_code(text.substr(at + 1, digits), 16, result);
      return at + 1 + digits;
    }
    if (letter == 'N') refuse("the escape \\N is not read; write the character itself");
    result += '\\';
    result += letter;
    return at + 1;
  }

  void append_code(std::string_view digits, int base, std::string& result) const {
    std::uint32_t code = 0;
    const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), code, base);
    if (read.ec != std::errc() || read.ptr != digits.data() + digits.size()) {
      refuse(fmt::format("the escape with the digits '{}' is none", shown_text(digits)));
    }
    if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) {
      refuse(fmt::format("the escape with the digits {} is no character", digits));
    }
    append_character(result, code);
  }

  const std::string source_;
  std::string_view rest_;
  int line_ = 1;
  bool at_line_begin_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokens_of(std::string_view text) { return Lexer(text).run(); }

}  // namespace loom::data::jinja
