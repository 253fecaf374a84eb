#include "engine/cli/exit_status.h"

#include <exception>
#include <fmt/core.h>
#include <iostream>

#include "engine/cli/standard_streams.h"
#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/launch/error_file.h"
#include "engine/launch/failure_text.h"
#include "engine/launch/stack.h"
#include "engine/launch/stop_signals.h"

namespace loom::cli {
namespace {

// In one piece: ranks that are processes write to one terminal.
void complain(std::string_view program, std::string_view text) {
  if (!text.empty()) std::cerr << fmt::format("{}: {}\n", escaped(program), shown_message(text));
}

void complain_of_failure(std::string_view program, const std::exception& error) {
  const std::string text = launch::failure_text(error);
  complain(program, text);
  launch::write_error_file(text);
}

int status_of(std::string_view program, const std::function<int()>& main) {
  try {
    return launch::run_on_large_stack(main);
  } catch (const ConfigError& error) {
    complain_of_failure(program, error);
    return kExitUsage;
  } catch (const launch::Interrupted& stopped) {
    complain(program, stopped.what());
    return kExitSignal + stopped.signal();
  } catch (const std::exception& error) {
    complain_of_failure(program, error);
    return kExitFailed;
  }
}

}  // namespace

int exit_status_of(std::string_view program, const std::function<int()>& main) {
  secure_standard_streams();
  const int status = status_of(program, main);
  const auto lost = standard_output_problem();
  if (!lost) return status;
  complain(program, *lost);
  return status == 0 ? kExitFailed : status;
}

}  // namespace loom::cli
