#include "engine/text/template/jinja/interpreter.h"

#include <algorithm>
#include <utility>

#include "engine/core/shown_text.h"
#include "engine/text/template/jinja/filters.h"
#include "engine/text/template/jinja/loop.h"
#include "engine/text/template/jinja/operators.h"

namespace loom::data::jinja {

// The variables of a block. Functions see the scope in which they were made, also when its block is over.
struct Interpreter::Scope {
  Scope* parent = nullptr;
  bool is_seen_later = false;
  std::vector<std::pair<std::string, Value>> variables = {};

  Value* find(std::string_view name, Budget& budget) {
    const auto found = find_name(variables, name, budget);
    return found == variables.end() ? nullptr : &found->second;
  }
  void set(std::string_view name, Value value, Budget& budget) {
    if (Value* known = find(name, budget)) {
      *known = std::move(value);
    } else {
      variables.emplace_back(std::string(name), std::move(value));
    }
  }
};

class Interpreter::ScopeGuard {
 public:
  explicit ScopeGuard(Interpreter& interpreter) : ScopeGuard(interpreter, *interpreter.scope_) {}
  ScopeGuard(Interpreter& interpreter, Scope& parent)
      : interpreter_(interpreter),
        before_(interpreter.scope_),
        scope_(std::make_unique<Scope>(Scope{.parent = &parent})) {
    interpreter.scope_ = scope_.get();
  }
  ~ScopeGuard() {
    interpreter_.scope_ = before_;
    if (scope_->is_seen_later) interpreter_.kept_scopes_.push_back(std::move(scope_));
  }
  ScopeGuard(const ScopeGuard&) = delete;
  ScopeGuard& operator=(const ScopeGuard&) = delete;

 private:
  Interpreter& interpreter_;
  Scope* before_;
  std::unique_ptr<Scope> scope_;
};

namespace {

// Counts a level while it lives.
class Level {
 public:
  Level(int& depth, int most, const char* what) : depth_(depth) {
    if (depth >= most) fail("{} go more than {} levels deep", what, most);
    ++depth_;
  }
  ~Level() { --depth_; }
  Level(const Level&) = delete;
  Level& operator=(const Level&) = delete;

 private:
  int& depth_;
};

void check_attribute_name(std::string_view name) {
  if (name.starts_with('_')) {
    fail("a namespace has no attributes whose name begins with _, like '{}'; rename it", shown_text(name));
  }
}

}  // namespace

Interpreter::Interpreter(RenderLimits limits, std::function<std::tm()> now)
    : budget_(limits.work),
      output_left_(limits.output_bytes),
      output_all_(limits.output_bytes),
      now_(std::move(now)),
      globals_(std::make_unique<Scope>()),
      scope_(globals_.get()) {}

Interpreter::~Interpreter() = default;

void Interpreter::set(std::string_view name, Value value) { globals_->set(name, std::move(value), budget_); }

std::string Interpreter::render(const Body& body) {
  return captured([&] { execute(body); });
}

Value* Interpreter::find(std::string_view name) {
  for (Scope* scope = scope_; scope != nullptr; scope = scope->parent) {
    if (Value* found = scope->find(name, budget_)) return found;
  }
  return nullptr;
}

// A function sees this scope and those around it, whatever comes of their blocks.
void Interpreter::keep_scopes() {
  for (Scope* scope = scope_; scope != nullptr && !scope->is_seen_later; scope = scope->parent) {
    budget_.objects(4);
    scope->is_seen_later = true;
  }
}

void Interpreter::write(std::string_view text) {
  budget_.text(text.size());
  if (text.size() > output_left_) fail("the template writes more than {} bytes; does it end?", output_all_);
  output_left_ -= text.size();
  *output_ += text;
}

template <class Run>
std::string Interpreter::captured(Run&& run) {
  std::string text;
  std::string* const before = std::exchange(output_, &text);
  run();
  output_ = before;
  if (before != nullptr) output_left_ += text.size();  // counts where it is written
  return text;
}

// --- assignments ---

void Interpreter::assign(const Expression& target, Value value) {
  budget_.work(1);
  if (target.kind == ExpressionKind::kTuple) return assign_parts(target, value);
  if (target.kind == ExpressionKind::kName) return scope_->set(target.text, std::move(value), budget_);
  const Value* space = find(target.text);
  if (space == nullptr || !space->is(Kind::kNamespace)) {
    fail("'{}' is no namespace, so that its attribute '{}' cannot be set; make it with namespace()",
         shown_text(target.text), shown_text(target.attribute));
  }
  check_attribute_name(target.attribute);
  space->as_namespace().set(target.attribute, std::move(value), budget_);
}

void Interpreter::assign_parts(const Expression& target, const Value& value) {
  if (value.is_undefined()) fail_undefined(value);
  auto items = items_of(value, budget_);
  if (items.size() != target.children.size()) {
    fail("{} names are set to {} values", target.children.size(), items.size());
  }
  for (std::size_t i = 0; i < items.size(); ++i) assign(*target.children[i], std::move(items[i]));
}

// --- statements ---

Interpreter::Flow Interpreter::execute(const Body& body) {
  for (const Statement& statement : body) {
    const Flow flow = execute(statement);
    if (flow != Flow::kOn) return flow;
  }
  return Flow::kOn;
}

Interpreter::Flow Interpreter::execute(const Statement& statement) {
  const Level level(depth_, kMostEvaluationDepth, "statements and expressions");
  budget_.work(1);
  line_ = statement.line;
  switch (statement.kind) {
    case StatementKind::kText:
      write(statement.text);
      return Flow::kOn;
    case StatementKind::kPrint:
      write(str(evaluate(*statement.expression), budget_));
      return Flow::kOn;
    case StatementKind::kSet:
      assign(*statement.target, evaluate(*statement.expression));
      return Flow::kOn;
    case StatementKind::kSetBlock:
      return execute_set_block(statement);
    case StatementKind::kIf:
      return execute_if(statement);
    case StatementKind::kFor:
      return execute_for(statement, evaluate(*statement.expression), 1);
    case StatementKind::kMacro:
      scope_->set(statement.text, function_of(statement), budget_);
      return Flow::kOn;
    case StatementKind::kCallBlock:
      execute_call_block(statement);
      return Flow::kOn;
    case StatementKind::kFilterBlock:
      return execute_filter_block(statement);
    case StatementKind::kWith:
      return execute_with(statement);
    case StatementKind::kScope:
      return execute_scope(statement.body);
    case StatementKind::kBreak:
      return Flow::kBreak;
    case StatementKind::kContinue:
      break;
  }
  return Flow::kContinue;
}

Interpreter::Flow Interpreter::execute_if(const Statement& statement) {
  for (const Branch& branch : statement.branches) {
    if (is_true(evaluate(*branch.test))) return execute(branch.body);
  }
  return execute(statement.otherwise);
}

Interpreter::Flow Interpreter::execute_for(const Statement& statement, const Value& iterable, int level) {
  Scope& home = *scope_;
  Loop::Keep keep;
  if (statement.test) {
    keep = [this, &statement, &home](const Value& item) {
      const ScopeGuard scope(*this, home);
      assign(*statement.target, item);
      return is_true(evaluate(*statement.test));
    };
  }
  const auto loop = std::make_shared<Loop>(items_of(iterable, budget_), std::move(keep), level);
  if (statement.recursive) {
    keep_scopes();
    loop->again = Value::function("loop", [&statement, &home, level](Interpreter& self, const Arguments& arguments) {
      arguments.expect("loop", {"iterable"}, 1);
      const Level call(self.calls_, kMostCalls, "calls");
      const ScopeGuard scope(self, home);
      return Value(self.captured([&] { self.execute_for(statement, *arguments.find(0, "iterable"), level + 1); }));
    });
  }
  bool any = false;
  while (loop->advance()) {
    any = true;
    const ScopeGuard scope(*this);
    scope_->set("loop", Value::loop(loop), budget_);
    assign(*statement.target, loop->current);
    if (execute(statement.body) == Flow::kBreak) break;
  }
  loop->keep = nullptr;
  if (any || statement.otherwise.empty()) return Flow::kOn;
  return execute_scope(statement.otherwise);
}

Interpreter::Flow Interpreter::execute_scope(const Body& body) {
  const ScopeGuard scope(*this);
  return execute(body);
}

Interpreter::Flow Interpreter::execute_set_block(const Statement& statement) {
  Flow flow = Flow::kOn;
  Value value = captured([&] { flow = execute_scope(statement.body); });
  if (flow != Flow::kOn) return flow;
  if (statement.expression) value = evaluate_filter(*statement.expression, &value);
  assign(*statement.target, std::move(value));
  return Flow::kOn;
}

Interpreter::Flow Interpreter::execute_filter_block(const Statement& statement) {
  Flow flow = Flow::kOn;
  const Value block = captured([&] { flow = execute_scope(statement.body); });
  if (flow != Flow::kOn) return flow;
  write(str(evaluate_filter(*statement.expression, &block), budget_));
  return Flow::kOn;
}

Interpreter::Flow Interpreter::execute_with(const Statement& statement) {
  std::vector<Value> values;
  for (const auto& [target, expression] : statement.bindings) values.push_back(evaluate(*expression));
  const ScopeGuard scope(*this);
  for (std::size_t i = 0; i < values.size(); ++i) assign(*statement.bindings[i].first, std::move(values[i]));
  return execute(statement.body);
}

void Interpreter::execute_call_block(const Statement& statement) {
  const Value caller = function_of(statement);
  write(str(evaluate_call(*statement.expression, &caller), budget_));
}

// --- macros ---

Value Interpreter::function_of(const Statement& statement) {
  keep_scopes();
  Scope* const home = scope_;
  return Value::function(statement.signature->name, [&statement, home](Interpreter& self, const Arguments& arguments) {
    return Value(self.run_function(statement, *home, arguments));
  });
}

std::string Interpreter::run_function(const Statement& statement, Scope& home, const Arguments& arguments) {
  const Level call(calls_, kMostCalls, "calls");
  const ScopeGuard scope(*this, home);
  bind_parameters(*statement.signature, arguments);
  return captured([&] { execute(statement.body); });
}

void Interpreter::bind_parameters(const Signature& signature, const Arguments& arguments) {
  const std::size_t count = signature.parameters.size();
  budget_.objects(arguments.named.size());
  auto named = arguments.named;
  const auto take = [&](std::string_view name) -> std::optional<Value> {
    const auto found = find_name(named, name, budget_);
    if (found == named.end()) return std::nullopt;
    budget_.work(named.size());
    Value value = std::move(found->second);
    named.erase(found);
    return value;
  };
  for (std::size_t i = 0; i < count; ++i) {
    const std::string& name = signature.parameters[i];
    const std::size_t without_default = count - signature.defaults.size();
    if (i < arguments.positional.size()) {
      scope_->set(name, arguments.positional[i], budget_);
    } else if (auto value = take(name)) {
      scope_->set(name, *std::move(value), budget_);
    } else if (i >= without_default) {
      scope_->set(name, evaluate(*signature.defaults[i - without_default]), budget_);
    } else {
      scope_->set(name, Value::undefined(fmt::format("the parameter '{}' was not given", shown_text(name))), budget_);
    }
  }
  if (signature.uses_caller && std::ranges::find(signature.parameters, "caller") == signature.parameters.end()) {
    auto caller = take("caller");
    scope_->set("caller", caller ? *std::move(caller) : Value::undefined("there is no caller; use a call block"),
                budget_);
  }
  const bool too_many = arguments.positional.size() > count;
  if (too_many && !signature.uses_varargs) {
    fail("the macro '{}' takes {} arguments at most, and {} are given", shown_text(signature.name), count,
         arguments.positional.size());
  }
  if (!named.empty() && !signature.uses_kwargs) {
    fail("the macro '{}' has no argument '{}'", shown_text(signature.name), shown_text(named.front().first));
  }
  if (signature.uses_varargs) {
    const auto begin =
        arguments.positional.begin() + static_cast<std::ptrdiff_t>(std::min(count, arguments.positional.size()));
    budget_.values(arguments.positional.size());
    scope_->set("varargs", Value::list({begin, arguments.positional.end()}, ListKind::kTuple), budget_);
  }
  if (signature.uses_kwargs) {
    std::vector<std::pair<Value, Value>> entries;
    budget_.objects(named.size());
    for (auto& [name, value] : named) entries.emplace_back(name, std::move(value));
    scope_->set("kwargs", Value::dict(std::move(entries)), budget_);
  }
}

// --- expressions ---

Value Interpreter::evaluate(const Expression& node) {
  const Level level(depth_, kMostEvaluationDepth, "statements and expressions");
  budget_.work(1);
  line_ = node.line;
  return evaluate_kind(node);
}

Value Interpreter::evaluate_kind(const Expression& node) {
  switch (node.kind) {
    case ExpressionKind::kConstant:
      return node.constant;
    case ExpressionKind::kName:
      return evaluate_name(node);
    case ExpressionKind::kList:
    case ExpressionKind::kTuple:
      return evaluate_list(node, node.kind == ExpressionKind::kTuple);
    case ExpressionKind::kDict:
      return evaluate_dict(node);
    case ExpressionKind::kAttribute:
      return attribute(evaluate(*node.children[0]), node.text, budget_);
    case ExpressionKind::kItem: {
      const Value value = evaluate(*node.children[0]);
      return item(value, evaluate(*node.children[1]), budget_);
    }
    case ExpressionKind::kSlice:
      return evaluate_slice(node);
    case ExpressionKind::kCall:
      return evaluate_call(node, nullptr);
    case ExpressionKind::kFilter:
      return evaluate_filter(node, nullptr);
    case ExpressionKind::kTest: {
      const Value value = evaluate(*node.children[0]);
      const Arguments arguments = evaluate_arguments(node.arguments);
      return apply_test(node.text, value, arguments);
    }
    case ExpressionKind::kNot:
      return !is_true(evaluate(*node.children[0]));
    case ExpressionKind::kAnd:
    case ExpressionKind::kOr: {
      Value value = evaluate(*node.children[0]);
      const bool decided = is_true(value) == (node.kind == ExpressionKind::kOr);
      return decided ? value : evaluate(*node.children[1]);
    }
    case ExpressionKind::kNegative:
      return negative(evaluate(*node.children[0]));
    case ExpressionKind::kPositive:
      return positive(evaluate(*node.children[0]));
    case ExpressionKind::kBinary: {
      const Value left = evaluate(*node.children[0]);
      return binary(node.text, left, evaluate(*node.children[1]), budget_);
    }
    case ExpressionKind::kConcat:
      return evaluate_concat(node);
    case ExpressionKind::kCompare:
      return evaluate_compare(node);
    case ExpressionKind::kConditional:
      if (is_true(evaluate(*node.children[0]))) return evaluate(*node.children[1]);
      if (node.children[2]) return evaluate(*node.children[2]);
      return Value::undefined("the condition of an 'if' without 'else' is false");
    case ExpressionKind::kNamespaceItem:
      break;
  }
  fail("found the attribute of a namespace where an expression is expected");
}

Value Interpreter::evaluate_name(const Expression& node) {
  if (const Value* value = find(node.text)) return *value;
  if (const Value* builtin = find_builtin(node.text)) return *builtin;
  return Value::undefined(fmt::format("'{}' is not defined", shown_text(node.text)));
}

Value Interpreter::evaluate_list(const Expression& node, bool tuple) {
  std::vector<Value> items;
  budget_.values(node.children.size());
  items.reserve(node.children.size());
  for (const auto& child : node.children) items.push_back(evaluate(*child));
  return Value::list(std::move(items), tuple ? ListKind::kTuple : ListKind::kList);
}

Value Interpreter::evaluate_dict(const Expression& node) {
  std::vector<std::pair<Value, Value>> entries;
  for (std::size_t i = 0; i < node.children.size(); i += 2) {
    Value key = evaluate(*node.children[i]);
    if (key.is_dict() || key.is_sequence_of(ListKind::kList)) {
      fail("a value of type '{}' cannot be the key of a dict", type_name(key));
    }
    Value value = evaluate(*node.children[i + 1]);
    const auto known =
        std::ranges::find_if(entries, [&](const auto& entry) { return are_equal(entry.first, key, budget_); });
    if (known != entries.end()) {
      known->second = std::move(value);
    } else {
      budget_.values(2);
      entries.emplace_back(std::move(key), std::move(value));
    }
  }
  return Value::dict(std::move(entries));
}

Value Interpreter::evaluate_call(const Expression& node, const Value* caller) {
  const Value function = evaluate(*node.children[0]);
  Arguments arguments = evaluate_arguments(node.arguments);
  if (caller != nullptr) arguments.named.emplace_back("caller", *caller);
  line_ = node.line;
  return call(function, arguments);
}

Value Interpreter::evaluate_compare(const Expression& node) {
  Value left = evaluate(*node.children[0]);
  for (std::size_t i = 0; i < node.operators.size(); ++i) {
    Value right = evaluate(*node.children[i + 1]);
    if (!compare(node.operators[i], left, right, budget_)) return false;
    left = std::move(right);
  }
  return true;
}

Value Interpreter::evaluate_concat(const Expression& node) {
  Builder text(budget_);
  for (const auto& child : node.children) append_str(text, evaluate(*child));
  return text.take();
}

Value Interpreter::evaluate_slice(const Expression& node) {
  const Value value = evaluate(*node.children[0]);
  const auto part = [&](std::size_t i) { return node.children[i] ? evaluate(*node.children[i]) : Value::none(); };
  const Value begin = part(1);
  const Value end = part(2);
  return slice(value, begin, end, part(3), budget_);
}

Value Interpreter::evaluate_filter(const Expression& node, const Value* block) {
  const Expression* const inner = node.children[0].get();
  Value value = inner == nullptr ? *block : block != nullptr ? evaluate_filter(*inner, block) : evaluate(*inner);
  const Arguments arguments = evaluate_arguments(node.arguments);
  line_ = node.line;
  return apply_filter(node.text, value, arguments);
}

Arguments Interpreter::evaluate_arguments(const CallArguments& given) {
  Arguments arguments;
  for (const auto& each : given.positional) arguments.positional.push_back(evaluate(*each));
  for (const auto& [name, each] : given.named) arguments.named.emplace_back(name, evaluate(*each));
  if (given.more_positional) {
    for (Value& each : items_of(evaluate(*given.more_positional), budget_)) {
      arguments.positional.push_back(std::move(each));
    }
  }
  if (given.more_named) {
    const Value more = evaluate(*given.more_named);
    if (!more.is_dict()) fail("** takes a dict, and not a value of type '{}'", type_name(more));
    for (const auto& [name, value] : more.as_dict().entries) {
      if (!name.is_text()) fail("the name of an argument is of type '{}'", type_name(name));
      if (find_name(arguments.named, name.as_text(), budget_) != arguments.named.end()) {
        fail("an argument is given twice: '{}'", shown_text(name.as_text()));
      }
      budget_.objects(1);
      budget_.text(name.as_text().size());
      arguments.named.emplace_back(name.as_text(), value);
    }
  }
  return arguments;
}

// --- for filters, tests and methods ---

Value Interpreter::call(const Value& function, const Arguments& arguments) {
  if (function.is_undefined()) fail_undefined(function);
  if (function.is(Kind::kLoop)) {
    if (function.as_loop().again.is_undefined()) fail("'loop' is called in a loop that is not recursive");
    return call(Value(function.as_loop().again), arguments);
  }
  if (!function.is(Kind::kFunction)) fail("a value of type '{}' cannot be called", type_name(function));
  return function.as_function().call(*this, arguments);
}

Value Interpreter::apply_filter(std::string_view name, const Value& value, const Arguments& arguments) {
  const Level level(depth_, kMostEvaluationDepth, "statements and expressions");
  budget_.work(1);
  return find_filter(name)(*this, value, arguments);
}

bool Interpreter::apply_test(std::string_view name, const Value& value, const Arguments& arguments) {
  budget_.work(1);
  return find_test(name)(*this, value, arguments);
}

Value Interpreter::new_namespace(const Arguments& arguments) {
  budget_.objects(2);
  namespaces_.push_back(std::make_unique<Namespace>());
  Namespace& made = *namespaces_.back();
  if (arguments.positional.size() > 1) fail("'namespace' takes one dict at most");
  for (const Value& from : arguments.positional) {
    if (!from.is_dict()) fail("'namespace' takes a dict, and not a value of type '{}'", type_name(from));
    for (const auto& [name, value] : from.as_dict().entries) {
      if (!name.is_text()) fail("the name of an attribute is of type '{}'", type_name(name));
      check_attribute_name(name.as_text());
      made.set(name.as_text(), value, budget_);
    }
  }
  for (const auto& [name, value] : arguments.named) {
    check_attribute_name(name);
    made.set(name, value, budget_);
  }
  return Value(&made);
}

std::string Interpreter::formatted_time(const std::string& format) const {
  constexpr std::size_t kLongest = 256;
  if (format.size() > kLongest) fail("'strftime_now' takes a format of {} bytes at most", kLongest);
  if (format.empty()) return "";
  const std::tm time = now_();
  char buffer[kLongest * 16];
  // Something in front, since an empty result and one that does not fit are both 0 bytes.
  const std::size_t bytes = std::strftime(buffer, sizeof buffer, ("." + format).c_str(), &time);
  if (bytes == 0) fail("'strftime_now' with the format '{}' gives too long a text", shown_text(format));
  std::string text(buffer + 1, bytes - 1);
  if (invalid_utf8(text)) fail("'strftime_now' with the format '{}' gives no UTF-8", shown_text(format));
  return text;
}

}  // namespace loom::data::jinja
