// The program of all targets: the first word of its command line, NAME_fuzz, says which it runs.
#include <filesystem>
#include <map>
#include <string>

#include "tests/fuzz/fuzz.h"

namespace loom::fuzz {
namespace {

std::map<std::string, Target>& targets() {
  static std::map<std::string, Target> all;
  return all;
}

Target chosen = nullptr;

}  // namespace

RegisteredTarget::RegisteredTarget(const char* name, Target target) {
  targets().emplace(std::string(name) + "_fuzz", target);
}

}  // namespace loom::fuzz

extern "C" int LLVMFuzzerInitialize(int*, char*** argv) {
  using namespace loom::fuzz;
  const std::string name = std::filesystem::path((*argv)[0]).filename();
  const auto found = targets().find(name);
  if (found == targets().end()) {
    fmt::print(stderr, "{} is no target; start one of the links beside the program:\n", name);
    for (const auto& [target, function] : targets()) fmt::print(stderr, "  {}\n", target);
    std::exit(2);
  }
  chosen = found->second;
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return loom::fuzz::chosen(data, size);
}
