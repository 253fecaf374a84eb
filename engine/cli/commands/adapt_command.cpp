#include "engine/cli/commands/adapt_command.h"

#include <fmt/core.h>

#include "engine/config/document.h"
#include "engine/core/shown_text.h"
#include "engine/dialects/adapt.h"

namespace loom::cli {

void run_adapt(const AdaptArguments& arguments, std::ostream& out, std::ostream& said) {
  const std::string script = config::read_text(arguments.script, "a launch script");
  const dialects::AdaptedScript adapted = dialects::adapt_script(script, arguments.script);
  out << adapted.text;
  for (const dialects::ScriptChange& change : adapted.changes) {
    said << fmt::format("{}:{}: {}\n", escaped(arguments.script), change.line, escaped(change.text));
  }
}

}  // namespace loom::cli
