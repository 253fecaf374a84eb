// Splits a template's text into tokens, like Jinja with trim_blocks and lstrip_blocks. Private to engine/text.
//
// Errors   SyntaxError with the line.
// Source   jinja2/lexer.py.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/template/jinja/budget.h"

namespace loom::data::jinja {

enum class TokenKind : std::uint8_t {
  kText,
  kPrintBegin,
  kPrintEnd,
  kBlockBegin,
  kBlockEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  int line = 0;
  std::string text = {};  // for a string: its contents
  std::int64_t integer = 0;
  double number = 0;

  bool is(TokenKind of, std::string_view with) const { return kind == of && text == with; }
  bool is_operator(std::string_view with) const { return is(TokenKind::kOperator, with); }
  bool is_name(std::string_view with) const { return is(TokenKind::kName, with); }
};

class SyntaxError : public TemplateError {
 public:
  SyntaxError(int line, const std::string& message) : TemplateError(message), line(line) {}
  int line;
};

// The last token is kEnd. Precondition: `text` is UTF-8.
std::vector<Token> tokens_of(std::string_view text);

}  // namespace loom::data::jinja
