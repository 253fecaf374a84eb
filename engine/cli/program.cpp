#include "engine/cli/program.h"

#include <exception>
#include <iostream>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "engine/cli/commands/compare_command.h"
#include "engine/cli/commands/config_command.h"
#include "engine/cli/commands/convert_command.h"
#include "engine/cli/commands/inspect_command.h"
#include "engine/cli/commands/lint_command.h"
#include "engine/cli/commands/merge_command.h"
#include "engine/cli/commands/plan_command.h"
#include "engine/cli/commands/preprocess_command.h"
#include "engine/cli/commands/train_command.h"
#include "engine/cli/exit_status.h"
#include "engine/cli/hub_callbacks.h"
#include "engine/cli/standard_streams.h"
#include "engine/core/error.h"
#include "engine/dialects/hub_models.h"
#include "engine/launch/failure_text.h"
#include "engine/talk/run_chat.h"
#include "engine/talk/run_generate.h"

namespace loom::cli {
namespace {

int run(const ParsedCommand& command) {
  if (const auto* help = std::get_if<EarlyExit>(&command)) {
    print_help(help->text);
    return help->code;
  }
  if (const auto* arguments = std::get_if<job::Job>(&command)) {
    run_train(*arguments, std::cout);
  } else if (const auto* plan = std::get_if<PlanArguments>(&command)) {
    return run_plan(*plan, hub_callbacks(plan->train), std::cout);
  } else if (const auto* compared = std::get_if<CompareArguments>(&command)) {
    return run_compare(*compared, std::cout);
  } else if (const auto* conversion = std::get_if<ConvertArguments>(&command)) {
    run_convert(*conversion, std::cout);
  } else if (const auto* merged = std::get_if<MergeArguments>(&command)) {
    run_merge(*merged, std::cout);
  } else if (const auto* inspected = std::get_if<InspectArguments>(&command)) {
    return run_inspect(*inspected, std::cout);
  } else if (const auto* preprocessing = std::get_if<PreprocessArguments>(&command)) {
    run_preprocess(*preprocessing, std::cout);
  } else if (const auto* shown = std::get_if<ConfigArguments>(&command)) {
    return run_config(*shown, std::cout);
  } else if (const auto* linted = std::get_if<LintArguments>(&command)) {
    return run_lint(*linted, std::cout);
  } else if (const auto* chat = std::get_if<talk::ChatArguments>(&command)) {
    talk::run_chat(*chat, std::cout);
  } else {
    talk::run_generate(std::get<talk::GenerateArguments>(command), std::cout);
  }
  return 0;
}

// What needs less memory, of commands without ranks; none where launch::failure_text() says it.
std::optional<std::string_view> memory_advice(const ParsedCommand& command) {
  if (std::holds_alternative<PreprocessArguments>(command)) {
    return "use fewer --workers, or split the input into smaller files";
  }
  const bool has_ranks = std::holds_alternative<job::Job>(command) ||
                         std::holds_alternative<talk::GenerateArguments>(command) ||
                         std::holds_alternative<talk::ChatArguments>(command);
  if (has_ranks) return std::nullopt;
  return "free memory on it, or use a machine that has more";
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

}  // namespace

int program_main(int argc, const char* const* argv) {
  return exit_status_of("shardloom", [&] {
    return run_with_advice(parse_arguments(argc, argv, launch::Start::detect(), dialects::hub_models()));
  });
}

}  // namespace loom::cli
