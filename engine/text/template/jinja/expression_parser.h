// Expressions of tags. Private to engine/text.
//
// Source   jinja2/parser.py.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/template/jinja/lexer.h"
#include "engine/text/template/jinja/syntax.h"

namespace loom::data::jinja {

class ExpressionParser {
 public:
  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

 protected:
  // One level of nesting, of brackets as of blocks.
  class Nested {
   public:
    explicit Nested(ExpressionParser& parser);
    ~Nested() { --parser_->nesting_; }
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;

   private:
    ExpressionParser* parser_;
  };

  const Token& current() const { return tokens_[at_]; }
  const Token& next() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  void advance() { at_ += at_ + 1 < tokens_.size() ? 1 : 0; }
  bool skip_operator(std::string_view text);
  bool skip_name(std::string_view text);
  void expect_operator(std::string_view text);
  void expect_name(std::string_view text);
  std::string expect_any_name(std::string_view what);
  [[noreturn]] void refuse(const std::string& message) const;
  [[noreturn]] void refuse_current(std::string_view expected) const;
  std::string shown_current() const;

  ExpressionPtr parse_expression();
  ExpressionPtr parse_or();
  // Expressions with commas between them are a tuple. `ends`: a name that ends it.
  ExpressionPtr parse_tuple(bool with_condition = true, std::string_view ends = "");
  // The head of a block: filters without their operand.
  ExpressionPtr parse_filters(ExpressionPtr filtered, bool at_name);
  // The target of set, for and with.
  ExpressionPtr parse_target(std::string_view ends = "", bool with_namespace = false);

  // The enclosing macros and call blocks, whose bodies may use varargs, kwargs and caller.
  std::vector<Signature*> signatures_;

 private:
  ExpressionPtr make(ExpressionKind kind, std::vector<ExpressionPtr> children, std::string text = "");
  ExpressionPtr finish(ExpressionPtr node) const;

  template <class Parse>
  ExpressionPtr parse_list_of(Parse&& parse, std::string_view ends, bool parentheses);
  ExpressionPtr parse_condition();
  ExpressionPtr parse_and();
  ExpressionPtr parse_not();
  ExpressionPtr parse_compare();
  std::string comparison();
  ExpressionPtr parse_sum();
  ExpressionPtr parse_concat();
  ExpressionPtr parse_product();
  ExpressionPtr parse_power();
  ExpressionPtr parse_unary(bool with_filters);
  ExpressionPtr parse_primary();
  ExpressionPtr parse_name();
  ExpressionPtr parse_string();
  ExpressionPtr parse_list();
  ExpressionPtr parse_dict();
  ExpressionPtr parse_target_item(bool with_namespace);
  ExpressionPtr parse_postfix(ExpressionPtr node);
  ExpressionPtr parse_filters_and_tests(ExpressionPtr node);
  ExpressionPtr parse_attribute(ExpressionPtr node);
  ExpressionPtr parse_item(ExpressionPtr node);
  ExpressionPtr parse_call(ExpressionPtr node);
  ExpressionPtr parse_test(ExpressionPtr node);
  CallArguments parse_arguments();
  std::string parse_dotted_name(std::string_view what);
  bool ends_tuple(std::string_view ends) const;

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int nesting_ = 0;
};

}  // namespace loom::data::jinja
