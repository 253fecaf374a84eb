#include "engine/text/template/jinja/expression_parser.h"

#include <algorithm>
#include <array>

#include "engine/core/shown_text.h"

namespace loom::data::jinja {
namespace {

int height_of(const ExpressionPtr& node) { return node ? node->height : 0; }

int height_of(const CallArguments& arguments) {
  int height = std::max(height_of(arguments.more_positional), height_of(arguments.more_named));
  for (const auto& each : arguments.positional) height = std::max(height, height_of(each));
  for (const auto& [name, each] : arguments.named) height = std::max(height, height_of(each));
  return height;
}

template <class... Each>
std::vector<ExpressionPtr> nodes(Each... each) {
  std::vector<ExpressionPtr> list;
  (list.push_back(std::move(each)), ...);
  return list;
}

bool is_literal_name(std::string_view name) {
  return name == "true" || name == "True" || name == "false" || name == "False" || name == "none" || name == "None";
}

}  // namespace

ExpressionParser::Nested::Nested(ExpressionParser& parser) : parser_(&parser) {
  if (++parser.nesting_ > kMostNesting) {
    --parser.nesting_;
    parser.refuse(fmt::format("blocks and brackets are nested more than {} levels deep", kMostNesting));
  }
}

void ExpressionParser::refuse(const std::string& message) const { throw SyntaxError(current().line, message); }

std::string ExpressionParser::shown_current() const {
  switch (current().kind) {
    case TokenKind::kEnd:
      return "the end of the template";
    case TokenKind::kText:
      return "text";
    case TokenKind::kPrintBegin:
      return "'{{'";
    case TokenKind::kPrintEnd:
      return "'}}'";
    case TokenKind::kBlockBegin:
      return "'{%'";
    case TokenKind::kBlockEnd:
      return "'%}'";
    default:
      return fmt::format("'{}'", shown_text(current().text));
  }
}

void ExpressionParser::refuse_current(std::string_view expected) const {
  refuse(fmt::format("found {} where {} is expected", shown_current(), expected));
}

bool ExpressionParser::skip_operator(std::string_view text) {
  if (!current().is_operator(text)) return false;
  advance();
  return true;
}

bool ExpressionParser::skip_name(std::string_view text) {
  if (!current().is_name(text)) return false;
  advance();
  return true;
}

void ExpressionParser::expect_operator(std::string_view text) {
  if (!skip_operator(text)) refuse_current(fmt::format("'{}'", text));
}

void ExpressionParser::expect_name(std::string_view text) {
  if (!skip_name(text)) refuse_current(fmt::format("'{}'", text));
}

std::string ExpressionParser::expect_any_name(std::string_view what) {
  if (current().kind != TokenKind::kName) refuse_current(what);
  std::string name = current().text;
  advance();
  return name;
}

ExpressionPtr ExpressionParser::make(ExpressionKind kind, std::vector<ExpressionPtr> children, std::string text) {
  auto node = std::make_unique<Expression>();
  node->kind = kind;
  node->line = current().line;
  node->text = std::move(text);
  node->children = std::move(children);
  return finish(std::move(node));
}

ExpressionPtr ExpressionParser::finish(ExpressionPtr node) const {
  int height = height_of(node->arguments);
  for (const auto& child : node->children) height = std::max(height, height_of(child));
  node->height = height + 1;
  if (node->height > kMostNodeHeight) refuse(fmt::format("an expression has more than {} levels", kMostNodeHeight));
  return node;
}

ExpressionPtr ExpressionParser::parse_expression() {
  const Nested nested(*this);
  return parse_condition();
}

ExpressionPtr ExpressionParser::parse_condition() {
  ExpressionPtr node = parse_or();
  while (skip_name("if")) {
    ExpressionPtr test = parse_or();
    ExpressionPtr otherwise = skip_name("else") ? parse_expression() : nullptr;
    node = make(ExpressionKind::kConditional, nodes(std::move(test), std::move(node), std::move(otherwise)));
  }
  return node;
}

ExpressionPtr ExpressionParser::parse_or() {
  ExpressionPtr node = parse_and();
  while (skip_name("or")) node = make(ExpressionKind::kOr, nodes(std::move(node), parse_and()));
  return node;
}

ExpressionPtr ExpressionParser::parse_and() {
  ExpressionPtr node = parse_not();
  while (skip_name("and")) node = make(ExpressionKind::kAnd, nodes(std::move(node), parse_not()));
  return node;
}

ExpressionPtr ExpressionParser::parse_not() {
  if (!skip_name("not")) return parse_compare();
  const Nested nested(*this);
  return make(ExpressionKind::kNot, nodes(parse_not()));
}

// The operator of a comparison, taken; empty when there is none.
std::string ExpressionParser::comparison() {
  for (const std::string_view text : {"==", "!=", "<", "<=", ">", ">="}) {
    if (skip_operator(text)) return std::string(text);
  }
  if (skip_name("in")) return "in";
  if (!current().is_name("not") || !next().is_name("in")) return "";
  advance();
  advance();
  return "not in";
}

ExpressionPtr ExpressionParser::parse_compare() {
  ExpressionPtr first = parse_sum();
  std::string text = comparison();
  if (text.empty()) return first;
  ExpressionPtr node = make(ExpressionKind::kCompare, nodes(std::move(first)));
  while (!text.empty()) {
    node->operators.push_back(text);
    node->children.push_back(parse_sum());
    text = comparison();
  }
  return finish(std::move(node));
}

ExpressionPtr ExpressionParser::parse_sum() {
  ExpressionPtr node = parse_concat();
  while (current().is_operator("+") || current().is_operator("-")) {
    std::string text = current().text;
    advance();
    node = make(ExpressionKind::kBinary, nodes(std::move(node), parse_concat()), std::move(text));
  }
  return node;
}

ExpressionPtr ExpressionParser::parse_concat() {
  ExpressionPtr first = parse_product();
  if (!current().is_operator("~")) return first;
  ExpressionPtr node = make(ExpressionKind::kConcat, nodes(std::move(first)));
  while (skip_operator("~")) node->children.push_back(parse_product());
  return finish(std::move(node));
}

ExpressionPtr ExpressionParser::parse_product() {
  constexpr std::array<std::string_view, 4> kOperators = {"*", "/", "//", "%"};
  ExpressionPtr node = parse_power();
  while (current().kind == TokenKind::kOperator && std::ranges::find(kOperators, current().text) != kOperators.end()) {
    std::string text = current().text;
    advance();
    node = make(ExpressionKind::kBinary, nodes(std::move(node), parse_power()), std::move(text));
  }
  return node;
}

ExpressionPtr ExpressionParser::parse_power() {
  ExpressionPtr node = parse_unary(true);
  while (skip_operator("**")) node = make(ExpressionKind::kBinary, nodes(std::move(node), parse_unary(true)), "**");
  return node;
}

ExpressionPtr ExpressionParser::parse_unary(bool with_filters) {
  ExpressionPtr node;
  if (current().is_operator("-") || current().is_operator("+")) {
    const Nested nested(*this);
    const auto kind = current().is_operator("-") ? ExpressionKind::kNegative : ExpressionKind::kPositive;
    advance();
    node = make(kind, nodes(parse_unary(false)));
  } else {
    node = parse_primary();
  }
  node = parse_postfix(std::move(node));
  return with_filters ? parse_filters_and_tests(std::move(node)) : std::move(node);
}

ExpressionPtr ExpressionParser::parse_primary() {
  switch (current().kind) {
    case TokenKind::kName:
      return parse_name();
    case TokenKind::kString:
      return parse_string();
    case TokenKind::kInteger:
    case TokenKind::kFloat: {
      ExpressionPtr node = make(ExpressionKind::kConstant, {});
      node->constant = current().kind == TokenKind::kInteger ? Value(current().integer) : Value(current().number);
      advance();
      return node;
    }
    default:
      break;
  }
  if (current().is_operator("[")) return parse_list();
  if (current().is_operator("{")) return parse_dict();
  if (!skip_operator("(")) refuse_current("an expression");
  ExpressionPtr node = parse_list_of([this] { return parse_expression(); }, "", true);
  expect_operator(")");
  return node;
}

ExpressionPtr ExpressionParser::parse_name() {
  const std::string name = current().text;
  if (is_literal_name(name)) {
    ExpressionPtr node = make(ExpressionKind::kConstant, {});
    if (name[0] != 'n' && name[0] != 'N') node->constant = Value(name[0] == 't' || name[0] == 'T');
    advance();
    return node;
  }
  for (Signature* signature : signatures_) {
    signature->uses_varargs |= name == "varargs";
    signature->uses_kwargs |= name == "kwargs";
    signature->uses_caller |= name == "caller";
  }
  ExpressionPtr node = make(ExpressionKind::kName, {}, name);
  advance();
  return node;
}

ExpressionPtr ExpressionParser::parse_string() {
  ExpressionPtr node = make(ExpressionKind::kConstant, {});
  std::string text;
  for (; current().kind == TokenKind::kString; advance()) text += current().text;
  node->constant = Value(std::move(text));
  return node;
}

bool ExpressionParser::ends_tuple(std::string_view ends) const {
  const TokenKind kind = current().kind;
  return kind == TokenKind::kPrintEnd || kind == TokenKind::kBlockEnd || current().is_operator(")") ||
         (!ends.empty() && current().is_name(ends));
}

template <class Parse>
ExpressionPtr ExpressionParser::parse_list_of(Parse&& parse, std::string_view ends, bool parentheses) {
  std::vector<ExpressionPtr> items;
  bool is_tuple = false;
  while (!ends_tuple(ends)) {
    items.push_back(parse());
    if (!skip_operator(",")) break;
    is_tuple = true;
  }
  if (!is_tuple && !items.empty()) return std::move(items.front());
  if (!is_tuple && !parentheses) refuse_current("an expression");
  return make(ExpressionKind::kTuple, std::move(items));
}

ExpressionPtr ExpressionParser::parse_tuple(bool with_condition, std::string_view ends) {
  return parse_list_of([&] { return with_condition ? parse_expression() : parse_or(); }, ends, false);
}

ExpressionPtr ExpressionParser::parse_list() {
  ExpressionPtr node = make(ExpressionKind::kList, {});
  advance();
  while (!current().is_operator("]")) {
    if (!node->children.empty()) expect_operator(",");
    if (current().is_operator("]")) break;
    node->children.push_back(parse_expression());
  }
  expect_operator("]");
  return finish(std::move(node));
}

ExpressionPtr ExpressionParser::parse_dict() {
  ExpressionPtr node = make(ExpressionKind::kDict, {});
  advance();
  while (!current().is_operator("}")) {
    if (!node->children.empty()) expect_operator(",");
    if (current().is_operator("}")) break;
    node->children.push_back(parse_expression());
    expect_operator(":");
    node->children.push_back(parse_expression());
  }
  expect_operator("}");
  return finish(std::move(node));
}

ExpressionPtr ExpressionParser::parse_target_item(bool with_namespace) {
  if (skip_operator("(")) {
    const Nested nested(*this);
    ExpressionPtr node = parse_list_of([&] { return parse_target_item(with_namespace); }, "", true);
    expect_operator(")");
    return node;
  }
  if (current().kind != TokenKind::kName || is_literal_name(current().text)) refuse_current("a name to set");
  ExpressionPtr node = make(ExpressionKind::kName, {}, current().text);
  advance();
  if (!with_namespace || !skip_operator(".")) return node;
  node->kind = ExpressionKind::kNamespaceItem;
  node->attribute = expect_any_name("the name of an attribute");
  return node;
}

ExpressionPtr ExpressionParser::parse_target(std::string_view ends, bool with_namespace) {
  return parse_list_of([&] { return parse_target_item(with_namespace); }, ends, false);
}

ExpressionPtr ExpressionParser::parse_postfix(ExpressionPtr node) {
  for (;;) {
    if (current().is_operator(".")) {
      node = parse_attribute(std::move(node));
    } else if (current().is_operator("[")) {
      node = parse_item(std::move(node));
    } else if (current().is_operator("(")) {
      node = parse_call(std::move(node));
    } else {
      return node;
    }
  }
}

ExpressionPtr ExpressionParser::parse_filters_and_tests(ExpressionPtr node) {
  for (;;) {
    if (current().is_operator("|")) {
      node = parse_filters(std::move(node), false);
    } else if (current().is_name("is")) {
      node = parse_test(std::move(node));
    } else if (current().is_operator("(")) {
      node = parse_call(std::move(node));
    } else {
      return node;
    }
  }
}

ExpressionPtr ExpressionParser::parse_attribute(ExpressionPtr node) {
  advance();
  if (current().kind == TokenKind::kName) {
    std::string name = current().text;
    node = make(ExpressionKind::kAttribute, nodes(std::move(node)), std::move(name));
  } else if (current().kind == TokenKind::kInteger) {
    ExpressionPtr index = make(ExpressionKind::kConstant, {});
    index->constant = Value(current().integer);
    node = make(ExpressionKind::kItem, nodes(std::move(node), std::move(index)));
  } else {
    refuse_current("the name of an attribute");
  }
  advance();
  return node;
}

ExpressionPtr ExpressionParser::parse_item(ExpressionPtr node) {
  advance();
  std::vector<ExpressionPtr> parts;
  int colons = 0;
  while (!current().is_operator("]")) {
    if (skip_operator(":")) {
      if (++colons > 2) refuse("a slice has three parts at most; take the others out");
      if (parts.size() < static_cast<std::size_t>(colons)) parts.push_back(nullptr);
    } else {
      if (parts.size() > static_cast<std::size_t>(colons)) refuse_current("']'");
      parts.push_back(parse_expression());
    }
  }
  advance();
  if (parts.empty()) refuse("an index is missing between [ and ]");
  if (colons == 0) return make(ExpressionKind::kItem, nodes(std::move(node), std::move(parts.front())));
  parts.resize(3);
  parts.insert(parts.begin(), std::move(node));
  return make(ExpressionKind::kSlice, std::move(parts));
}

ExpressionPtr ExpressionParser::parse_call(ExpressionPtr node) {
  ExpressionPtr call = make(ExpressionKind::kCall, nodes(std::move(node)));
  call->arguments = parse_arguments();
  return finish(std::move(call));
}

CallArguments ExpressionParser::parse_arguments() {
  CallArguments arguments;
  const auto ensure = [this](bool holds) {
    if (!holds) refuse("the arguments of this call are in the wrong order");
  };
  expect_operator("(");
  for (bool first = true; !current().is_operator(")"); first = false) {
    if (!first) expect_operator(",");
    if (current().is_operator(")")) break;
    if (skip_operator("*")) {
      ensure(!arguments.more_positional && !arguments.more_named);
      arguments.more_positional = parse_expression();
    } else if (skip_operator("**")) {
      ensure(!arguments.more_named);
      arguments.more_named = parse_expression();
    } else if (current().kind == TokenKind::kName && next().is_operator("=")) {
      ensure(!arguments.more_named);
      std::string name = current().text;
      const auto same = [&](const auto& each) { return each.first == name; };
      if (std::ranges::any_of(arguments.named, same))
        refuse(fmt::format("the argument '{}' is given twice", shown_text(name)));
      advance();
      advance();
      arguments.named.emplace_back(std::move(name), parse_expression());
    } else {
      ensure(!arguments.more_positional && !arguments.more_named && arguments.named.empty());
      arguments.positional.push_back(parse_expression());
    }
  }
  expect_operator(")");
  return arguments;
}

std::string ExpressionParser::parse_dotted_name(std::string_view what) {
  std::string name = expect_any_name(what);
  while (skip_operator(".")) name = fmt::format("{}.{}", name, expect_any_name(what));
  return name;
}

ExpressionPtr ExpressionParser::parse_filters(ExpressionPtr filtered, bool at_name) {
  while (at_name || skip_operator("|")) {
    at_name = false;
    ExpressionPtr node = make(ExpressionKind::kFilter, nodes(std::move(filtered)));
    node->text = parse_dotted_name("the name of a filter");
    if (current().is_operator("(")) node->arguments = parse_arguments();
    filtered = finish(std::move(node));
  }
  return filtered;
}

ExpressionPtr ExpressionParser::parse_test(ExpressionPtr node) {
  advance();
  const bool negated = skip_name("not");
  ExpressionPtr test = make(ExpressionKind::kTest, nodes(std::move(node)));
  test->text = parse_dotted_name("the name of a test");
  const TokenKind kind = current().kind;
  const bool argument = kind == TokenKind::kName || kind == TokenKind::kString || kind == TokenKind::kInteger ||
                        kind == TokenKind::kFloat || current().is_operator("[") || current().is_operator("{");
  if (current().is_operator("(")) {
    test->arguments = parse_arguments();
  } else if (argument && !current().is_name("else") && !current().is_name("or") && !current().is_name("and")) {
    if (current().is_name("is")) refuse("a test follows a test; put the first one into parentheses");
    const Nested nested(*this);
    test->arguments.positional.push_back(parse_postfix(parse_primary()));
  }
  test = finish(std::move(test));
  return negated ? make(ExpressionKind::kNot, nodes(std::move(test))) : std::move(test);
}

}  // namespace loom::data::jinja
