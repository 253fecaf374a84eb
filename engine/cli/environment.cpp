#include "engine/cli/environment.h"

#include <cstdlib>
#include <string_view>

#include "engine/core/log.h"
#include "engine/core/shown_text.h"

namespace loom::cli {
namespace {

struct Variable {
  const char* name;
  std::string_view harmless;  // a value that asks for nothing; empty: none
  std::string_view only;      // the value that is named; empty: any
  std::string_view text;      // behind "NAME is VALUE"
  bool of_fsdp2 = false;      // it is named only where the job has FSDP2
};

constexpr Variable kVariables[] = {
    {"CUDA_DEVICE_MAX_CONNECTIONS", "", "1",
     "which changes nothing here; MindSpeed refuses it with FSDP2: export 2 there", true},
    {"TASK_QUEUE_ENABLE", "0", "",
     "which prepares operators in a queue of their own on NPUs; it is not built yet and changes nothing here"},
    {"MULTI_STREAM_MEMORY_REUSE", "", "", "which sets the allocator of NPUs; it changes nothing here"},
    {"HCCL_CONNECT_TIMEOUT", "", "",
     "which is of NPUs' connections; it changes nothing here: write --distributed-timeout-minutes N"},
};

// Empty where it is not set.
std::string_view value_of(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

void warn_of_environment(bool sharded) {
  for (const Variable& variable : kVariables) {
    const std::string_view value = value_of(variable.name);
    if (variable.of_fsdp2 && !sharded) continue;
    if (value.empty() || value == variable.harmless || (!variable.only.empty() && value != variable.only)) continue;
    log_warning("{} is {}, {}", variable.name, shown_text(value), variable.text);
  }
}

}  // namespace loom::cli
