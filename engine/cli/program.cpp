#include "engine/cli/program.h"

#include <exception>
#include <iostream>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "engine/cli/commands/adapt_command.h"
#include "engine/cli/commands/calibrate_command.h"
#include "engine/cli/commands/compare_command.h"
#include "engine/cli/commands/compared_plans.h"
#include "engine/cli/commands/config_command.h"
#include "engine/cli/commands/explain_command.h"
#include "engine/cli/commands/launcher_command.h"
#include "engine/cli/commands/lint_command.h"
#include "engine/cli/commands/optional_commands.h"
#include "engine/cli/commands/plan_command.h"
#include "engine/cli/commands/several_hosts.h"
#include "engine/cli/commands/train_command.h"
#include "engine/cli/exit_status.h"
#include "engine/cli/hub_callbacks.h"
#include "engine/cli/standard_streams.h"
#include "engine/core/error.h"
#include "engine/core/processor_level.h"
#include "engine/dialects/hub_models.h"
#include "engine/launch/failure_text.h"

namespace loom::cli {
namespace {

int run_optional(const OptionalArguments& arguments) {
  for (const auto run : {run_talk, run_text, run_multimodal, run_conversion}) {
    if (const auto status = run(arguments.values, std::cout)) return *status;
  }
  raise<Error>("no command of this build takes the arguments");
}

int run(const ParsedCommand& command) {
  if (const auto* help = std::get_if<EarlyExit>(&command)) {
    print_help(help->text);
    return help->code;
  }
  if (const auto* plan = std::get_if<PlanArguments>(&command)) {
    if (!plan->compared.empty()) {
      const PlanArguments &a = plan->compared.front(), &b = plan->compared.back();
      return run_compared_plans(*plan, hub_callbacks(a.train), hub_callbacks(b.train), std::cout);
    }
    return run_plan(*plan, hub_callbacks(plan->train), std::cout);
  }
  if (const auto* compared = std::get_if<CompareArguments>(&command)) return run_compare(*compared, std::cout);
  if (const auto* explained = std::get_if<ExplainArguments>(&command)) return run_explain(*explained, std::cout);
  if (const auto* fitted = std::get_if<CalibrateArguments>(&command)) return run_calibrate(*fitted, std::cout), 0;
  if (const auto* shown = std::get_if<ConfigArguments>(&command)) return run_config(*shown, std::cout);
  if (const auto* linted = std::get_if<LintArguments>(&command)) return run_lint(*linted, std::cout);
  if (const auto* adapted = std::get_if<AdaptArguments>(&command)) return run_adapt(*adapted, std::cout, std::cerr), 0;
  if (const auto* launched = std::get_if<LauncherArguments>(&command)) return run_launcher(*launched, std::cout);
  if (const auto* optional = std::get_if<OptionalArguments>(&command)) return run_optional(*optional);
  run_train(std::get<job::Job>(command), std::cout);
  return 0;
}

// What needs less memory, of commands without ranks; none where launch::failure_text() says it.
std::optional<std::string_view> memory_advice(const ParsedCommand& command) {
  if (std::holds_alternative<job::Job>(command)) return std::nullopt;
  if (const auto* optional = std::get_if<OptionalArguments>(&command)) return optional->memory_advice;
  return kMemoryAdvice;
}

int run_with_advice(const ParsedCommand& command) {
  const auto advice = memory_advice(command);
  try {
    return run(command);
  } catch (const std::exception& error) {
    if (!advice || !launch::is_out_of_memory(error)) throw;
    throw Error(launch::out_of_memory_text(*advice));
  }
}

// A launcher does not depend on who started it: it gives its workers their environment.
launch::Start start_of(int argc, const char* const* argv) {
  const std::string_view command = argc > 1 ? argv[1] : "";
  return command == "torchrun" || command == "msrun" ? launch::Start{} : launch::Start::detect();
}

}  // namespace

int program_main(int argc, const char* const* argv) {
  return exit_status_of("shardloom", [&] {
    check_processor_variable();
    const launch::Start start = start_of(argc, argv);
    if (argc > 1 && std::string_view(argv[1]) == "train") {
      if (const auto status = run_on_several_hosts(argc, argv, start, std::cout)) return *status;
    }
    return run_with_advice(parse_arguments(argc, argv, start, dialects::hub_models()));
  });
}

}  // namespace loom::cli
