#include "engine/text/template/jinja/parser.h"

#include <algorithm>

#include "engine/core/shown_text.h"
#include "engine/text/template/jinja/expression_parser.h"

namespace loom::data::jinja {
namespace {

using Names = std::initializer_list<std::string_view>;

class Parser : public ExpressionParser {
 public:
  using ExpressionParser::ExpressionParser;

  Body parse_template() { return parse_until({}); }

 private:
  // Up to a tag of one of these names, which is the current token then; without names up to the end.
  Body parse_until(Names ends) {
    const Nested nested(*this);
    Body body;
    for (;;) {
      switch (current().kind) {
        case TokenKind::kText:
          body.push_back(statement(StatementKind::kText));
          body.back().text = current().text;
          advance();
          break;
        case TokenKind::kPrintBegin:
          advance();
          body.push_back(statement(StatementKind::kPrint));
          body.back().expression = parse_tuple();
          if (current().kind != TokenKind::kPrintEnd) refuse_current("'}}'");
          advance();
          break;
        case TokenKind::kBlockBegin:
          advance();
          if (std::ranges::any_of(ends, [&](std::string_view end) { return current().is_name(end); })) return body;
          parse_statement(body);
          expect_block_end();
          break;
        default:
          if (ends.size() == 0) return body;
          refuse(fmt::format("the template ends before {{% {} %}}", *(ends.end() - 1)));
      }
    }
  }

  Statement statement(StatementKind kind) const {
    Statement made;
    made.kind = kind;
    made.line = current().line;
    return made;
  }

  void expect_block_end() {
    if (current().kind != TokenKind::kBlockEnd) refuse_current("'%}'");
    advance();
  }

  Body parse_body(Names ends) {
    skip_operator(":");
    expect_block_end();
    return parse_until(ends);
  }
  // The body and its end tag's name.
  Body parse_whole_body(std::string_view end) {
    Body body = parse_body({end});
    advance();
    return body;
  }

  void parse_statement(Body& body) {
    const std::string name = current().kind == TokenKind::kName ? current().text : "";
    if (name == "print") return parse_print(body);
    if (name == "set") return body.push_back(parse_set());
    if (name == "if") return body.push_back(parse_if());
    if (name == "for") return body.push_back(parse_for());
    if (name == "macro") return body.push_back(parse_macro());
    if (name == "call") return body.push_back(parse_call_block());
    if (name == "filter") return body.push_back(parse_filter_block());
    if (name == "with") return body.push_back(parse_with());
    if (name == "generation") return body.push_back(parse_generation());
    if (name == "break" || name == "continue") return body.push_back(parse_jump(name));
    for (const std::string_view other : {"include", "import", "from", "extends", "block", "autoescape"}) {
      if (name == other) refuse(fmt::format("the tag '{}' is not read in chat templates; write its text here", name));
    }
    refuse_current("the name of a tag");
  }

  void parse_print(Body& body) {
    advance();
    for (bool first = true; current().kind != TokenKind::kBlockEnd; first = false) {
      if (!first) expect_operator(",");
      body.push_back(statement(StatementKind::kPrint));
      body.back().expression = parse_expression();
    }
  }

  Statement parse_set() {
    Statement set = statement(StatementKind::kSet);
    advance();
    set.target = parse_target("", true);
    if (skip_operator("=")) {
      set.expression = parse_tuple();
      return set;
    }
    set.kind = StatementKind::kSetBlock;
    set.expression = parse_filters(nullptr, false);
    set.body = parse_whole_body("endset");
    return set;
  }

  Statement parse_if() {
    Statement whole = statement(StatementKind::kIf);
    do {
      advance();
      Branch branch;
      branch.test = parse_tuple(false);
      branch.body = parse_body({"elif", "else", "endif"});
      whole.branches.push_back(std::move(branch));
    } while (current().is_name("elif"));
    if (skip_name("else")) {
      whole.otherwise = parse_whole_body("endif");
    } else {
      advance();
    }
    return whole;
  }

  Statement parse_for() {
    Statement loop = statement(StatementKind::kFor);
    advance();
    loop.target = parse_target("in");
    expect_name("in");
    loop.expression = parse_tuple(false, "recursive");
    if (skip_name("if")) loop.test = parse_expression();
    loop.recursive = skip_name("recursive");
    ++loops_;
    loop.body = parse_body({"else", "endfor"});
    --loops_;
    if (skip_name("else")) {
      loop.otherwise = parse_whole_body("endfor");
    } else {
      advance();
    }
    return loop;
  }

  // A body that is a function in Python: jumps do not leave it.
  Body parse_function_body(std::string_view end) {
    const int loops = std::exchange(loops_, 0);
    Body body = parse_whole_body(end);
    loops_ = loops;
    return body;
  }
  // The rest of a function with a signature.
  void parse_function(Statement& function, const std::shared_ptr<Signature>& signature, std::string_view end) {
    signatures_.push_back(signature.get());
    function.body = parse_function_body(end);
    signatures_.pop_back();
    function.signature = signature;
  }

  void parse_parameters(Signature& signature) {
    expect_operator("(");
    for (bool first = true; !current().is_operator(")"); first = false) {
      if (!first) expect_operator(",");
      std::string name = expect_any_name("the name of a parameter");
      if (std::ranges::find(signature.parameters, name) != signature.parameters.end()) {
        refuse(fmt::format("the parameter '{}' occurs twice", shown_text(name)));
      }
      signature.parameters.push_back(std::move(name));
      if (skip_operator("=")) {
        signature.defaults.push_back(parse_expression());
      } else if (!signature.defaults.empty()) {
        refuse("a parameter without a default follows one that has a default");
      }
    }
    expect_operator(")");
  }

  Statement parse_macro() {
    Statement macro = statement(StatementKind::kMacro);
    advance();
    const auto signature = std::make_shared<Signature>();
    signature->name = macro.text = expect_any_name("the name of a macro");
    parse_parameters(*signature);
    parse_function(macro, signature, "endmacro");
    return macro;
  }

  Statement parse_call_block() {
    Statement call = statement(StatementKind::kCallBlock);
    advance();
    const auto signature = std::make_shared<Signature>();
    signature->name = "caller";
    if (current().is_operator("(")) parse_parameters(*signature);
    call.expression = parse_expression();
    if (call.expression->kind != ExpressionKind::kCall) refuse("a call block calls a macro; write its arguments");
    parse_function(call, signature, "endcall");
    return call;
  }

  Statement parse_filter_block() {
    Statement block = statement(StatementKind::kFilterBlock);
    advance();
    block.expression = parse_filters(nullptr, true);
    block.body = parse_whole_body("endfilter");
    return block;
  }

  Statement parse_with() {
    Statement with = statement(StatementKind::kWith);
    advance();
    while (current().kind != TokenKind::kBlockEnd) {
      if (!with.bindings.empty()) expect_operator(",");
      ExpressionPtr target = parse_target();
      expect_operator("=");
      with.bindings.emplace_back(std::move(target), parse_expression());
    }
    with.body = parse_whole_body("endwith");
    return with;
  }

  Statement parse_generation() {
    Statement block = statement(StatementKind::kScope);
    advance();
    block.body = parse_function_body("endgeneration");
    return block;
  }

  Statement parse_jump(const std::string& name) {
    if (loops_ == 0) refuse(fmt::format("'{}' is outside of a loop; take it out", name));
    Statement jump = statement(name == "break" ? StatementKind::kBreak : StatementKind::kContinue);
    advance();
    return jump;
  }

  int loops_ = 0;
};

}  // namespace

Body parse(std::string_view text) { return Parser(tokens_of(text)).parse_template(); }

}  // namespace loom::data::jinja
