// Renders a parsed template. Private to engine/text.
//
// Errors    TemplateError where Python would raise and where a limit is reached, TemplateRefusal for raise_exception();
//           line() has the line.
// Threads   one rendering belongs to one thread.
// Source    jinja2: compiler.py, runtime.py, sandbox.py; Transformers' utils/chat_template_utils.py.
#pragma once

#include <ctime>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/text/template/jinja/syntax.h"
#include "engine/text/template/jinja/value.h"

namespace loom::data::jinja {

struct RenderLimits {
  std::int64_t work = 0;
  std::size_t output_bytes = 0;
};

class Interpreter {
 public:
  // `now`: the time for strftime_now().
  Interpreter(RenderLimits limits, std::function<std::tm()> now);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  // A variable of the template.
  void set(std::string_view name, Value value);
  // `body` outlives the interpreter. Callable once.
  std::string render(const Body& body);
  // The line of the statement or expression that was evaluated last.
  int line() const { return line_; }

  // --- for filters, tests and methods ---
  Budget& budget() { return budget_; }
  Value call(const Value& function, const Arguments& arguments);
  Value apply_filter(std::string_view name, const Value& value, const Arguments& arguments);
  bool apply_test(std::string_view name, const Value& value, const Arguments& arguments);
  Value new_namespace(const Arguments& arguments);
  std::string formatted_time(const std::string& format) const;

 private:
  struct Scope;
  class ScopeGuard;
  enum class Flow : std::uint8_t { kOn, kBreak, kContinue };

  Value* find(std::string_view name);
  void keep_scopes();
  void assign(const Expression& target, Value value);
  void assign_parts(const Expression& target, const Value& value);
  void write(std::string_view text);
  // The output of `run`, captured instead of written.
  template <class Run>
  std::string captured(Run&& run);

  Flow execute(const Body& body);
  Flow execute(const Statement& statement);
  Flow execute_if(const Statement& statement);
  Flow execute_for(const Statement& statement, const Value& iterable, int level);
  Flow execute_set_block(const Statement& statement);
  Flow execute_filter_block(const Statement& statement);
  Flow execute_with(const Statement& statement);
  Flow execute_scope(const Body& body);
  void execute_call_block(const Statement& statement);
  Value function_of(const Statement& statement);
  std::string run_function(const Statement& statement, Scope& home, const Arguments& arguments);
  void bind_parameters(const Signature& signature, const Arguments& arguments);

  Value evaluate(const Expression& node);
  Value evaluate_kind(const Expression& node);
  Value evaluate_name(const Expression& node);
  Value evaluate_list(const Expression& node, bool tuple);
  Value evaluate_dict(const Expression& node);
  Value evaluate_call(const Expression& node, const Value* caller);
  Value evaluate_compare(const Expression& node);
  Value evaluate_concat(const Expression& node);
  Value evaluate_slice(const Expression& node);
  Value evaluate_filter(const Expression& node, const Value* block);
  Arguments evaluate_arguments(const CallArguments& arguments);

  Budget budget_;
  std::size_t output_left_;
  std::size_t output_all_;
  std::function<std::tm()> now_;
  int line_ = 1;
  int depth_ = 0;
  int calls_ = 0;
  std::string* output_ = nullptr;
  std::vector<std::unique_ptr<Namespace>> namespaces_;
  std::vector<std::unique_ptr<Scope>> kept_scopes_;  // still visible to functions
  std::unique_ptr<Scope> globals_;
  Scope* scope_ = nullptr;
};

// The builtin function of that name.
const Value* find_builtin(std::string_view name);

}  // namespace loom::data::jinja
