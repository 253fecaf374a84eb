#include "engine/cli/exit_status.h"

#include <exception>
#include <fmt/format.h>
#include <iostream>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/launch/failure_text.h"
#include "engine/launch/stack.h"

namespace loom::cli {

int exit_status_of(std::string_view program, const std::function<int()>& main) {
  // In one piece: ranks that are processes write to one terminal.
  const auto complain = [&](const std::exception& error) {
    std::cerr << fmt::format("{}: {}\n", escaped(program), shown_message(launch::failure_text(error)));
  };
  try {
    return launch::run_on_large_stack(main);
  } catch (const ConfigError& error) {
    complain(error);
    return kExitUsage;
  } catch (const std::exception& error) {
    complain(error);
    return kExitFailed;
  }
}

}  // namespace loom::cli
