// The shardloom program. Exit status: 0 done, 1 a run failed, 2 the command line or a file of the user's is wrong, 3 a
// planned step does not fit on the device.
#include <iostream>
#include <string>

#include "engine/core/error.h"
#include "engine/train/job.h"
#include "engine/train/plan_job.h"

namespace {

int run(const loom::train::ParsedCommand& command) {
  if (const auto* help = std::get_if<loom::train::EarlyExit>(&command)) {
    std::cout << help->text;
    return help->code;
  }
  if (const auto* arguments = std::get_if<loom::train::TrainArguments>(&command)) {
    loom::train::run_train(*arguments, std::cout);
  } else if (const auto* plan = std::get_if<loom::train::PlanArguments>(&command)) {
    return loom::train::run_plan(*plan, std::cout);
  } else {
    loom::train::run_generate(std::get<loom::train::GenerateArguments>(command), std::cout);
  }
  return 0;
}

// In one piece: ranks that are processes write to one terminal.
void complain(const std::exception& error) { std::cerr << std::string("shardloom: ") + error.what() + "\n"; }

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(loom::train::parse_arguments(argc, argv));
  } catch (const loom::ConfigError& error) {
    complain(error);
    return loom::train::kExitUsage;
  } catch (const std::exception& error) {
    complain(error);
    return 1;
  }
}
