// A parsed template: statements and expressions. Private to engine/text.
//
// Height   of an expression: kMostNodeHeight at most, as it is evaluated and destroyed by recursion.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/text/template/jinja/value.h"

namespace loom::data::jinja {

enum class ExpressionKind : std::uint8_t {
  kConstant,
  kName,
  kList,
  kTuple,
  kDict,       // children: key, value, key, value
  kAttribute,  // children[0].text
  kItem,       // children[0][children[1]]
  kSlice,      // children[0][children[1]:children[2]:children[3]]; absent ones are null
  kCall,       // children[0](arguments)
  kFilter,     // children[0] | text(arguments); null in the head of a block
  kTest,       // children[0] is text(arguments)
  kNot,
  kAnd,
  kOr,
  kNegative,
  kPositive,
  kBinary,  // text: the operator
  kConcat,
  kCompare,       // children[0] operators[0] children[1] operators[1] children[2]
  kConditional,   // children[1] if children[0] else children[2], which may be null
  kNamespaceItem  // only as a target: text.attribute
};

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

struct CallArguments {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  ExpressionPtr more_positional;  // *x
  ExpressionPtr more_named;       // **x
};

struct Expression {
  ExpressionKind kind = ExpressionKind::kConstant;
  int line = 0;
  int height = 1;
  std::string text = {};
  std::string attribute = {};
  Value constant = Value::none();
  std::vector<ExpressionPtr> children = {};
  std::vector<std::string> operators = {};
  CallArguments arguments = {};
};

enum class StatementKind : std::uint8_t {
  kText,
  kPrint,
  kSet,
  kSetBlock,  // {% set target | filter %}body{% endset %}
  kIf,
  kFor,
  kMacro,
  kCallBlock,
  kFilterBlock,
  kWith,
  kScope,  // {% generation %}
  kBreak,
  kContinue
};

struct Statement;
using Body = std::vector<Statement>;

struct Branch {
  ExpressionPtr test;
  Body body;
};

// The signature of a macro or of a block that calls one.
struct Signature {
  std::string name;
  std::vector<std::string> parameters;
  std::vector<ExpressionPtr> defaults;  // of the last parameters
  bool uses_varargs = false;
  bool uses_kwargs = false;
  bool uses_caller = false;
};

struct Statement {
  StatementKind kind = StatementKind::kText;
  int line = 0;
  std::string text = {};
  ExpressionPtr target = {};      // for set and for
  ExpressionPtr expression = {};  // the expression that is printed, set, iterated, called, filtered by
  ExpressionPtr test = {};        // for ... if
  bool recursive = false;
  std::vector<Branch> branches = {};  // for if
  Body body = {};
  Body otherwise = {};
  std::vector<std::pair<ExpressionPtr, ExpressionPtr>> bindings = {};  // for with
  std::shared_ptr<const Signature> signature = {};
};

}  // namespace loom::data::jinja
