#include "engine/cli/adaptive_run.h"

#include "engine/core/error.h"

namespace loom::cli {
namespace {

// Memory of the device; 0: unlimited.
std::int64_t device_mib(const train::TrainSections& arguments, const train::PretrainCallbacks& callbacks,
                        const virtual_time::HardwareProfile& profile, bool plans) {
  return plans ? plan::capacity_of(arguments, callbacks, profile) >> 20 : arguments.memory.device_memory_mib;
}

}  // namespace

std::optional<plan::AdaptiveChoice> choose_modes(const train::TrainSections& arguments,
                                                 const train::PretrainCallbacks& callbacks,
                                                 const virtual_time::HardwareProfile& profile, bool plans) {
  if (!arguments.memory.adaptive_recompute) return std::nullopt;
  const std::int64_t most = device_mib(arguments, callbacks, profile, plans);
  const std::int64_t asked = arguments.memory.adaptive_recompute_mib;
  const bool as_asked = asked > 0 && (most == 0 || asked <= most);
  if (!as_asked && most == 0) {
    config_error(
        "--adaptive-recompute-device-swap is given, and the memory of this machine is no device's; give "
        "--adaptive-recompute-device-size or --device-memory, the MiB that a step has to fit");
  }
  train::TrainSections limited = arguments;
  limited.memory.device_memory_mib = as_asked ? asked : most;
  return plan::choose_adaptive(limited, callbacks, profile);
}

train::EditConfig edit_of(const std::optional<plan::AdaptiveChoice>& choice) {
  if (!choice) return nullptr;
  return [modules = choice->modules](sharding::Fsdp2Config& config) { plan::apply_modes(modules, config); };
}

}  // namespace loom::cli
