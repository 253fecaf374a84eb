#include "engine/cli/plan_profile.h"

#include <cstdlib>
#include <string_view>

#include "engine/core/error.h"
#include "engine/core/parse_number.h"
#include "engine/core/shown_text.h"
#include "engine/virtual_time/find_profile.h"

namespace loom::cli {
namespace {

struct Variable {
  const char* name;
  std::string_view unit;
  std::int64_t unit_bytes;
  std::int64_t most;
};

constexpr std::int64_t kTiB = std::int64_t{1} << 40;
constexpr Variable kHccl{"HCCL_BUFFSIZE", "MB", 1 << 20, kTiB >> 20};
constexpr Variable kNccl{"NCCL_BUFFSIZE", "bytes", 1, kTiB};

}  // namespace

virtual_time::HardwareProfile plan_profile(const std::string& device, const std::string& flag) {
  virtual_time::HardwareProfile profile = virtual_time::find_profile(device, flag);
  auto& communicator = profile.memory.communicator;
  if (!communicator) return profile;
  const Variable& variable = communicator->library == virtual_time::CommLibrary::kHccl ? kHccl : kNccl;
  const char* value = std::getenv(variable.name);
  if (value == nullptr || *value == '\0') return profile;
  const auto number = parse_number<std::int64_t>(value);
  if (!number || *number < 1 || *number > variable.most) {
    config_error(
        "the environment variable {} is {}, expected the {} of a buffer, a whole number from 1 to {}; "
        "correct or unset it",
        variable.name, shown_text(value), variable.unit, variable.most);
  }
  communicator->buffer_bytes = *number * variable.unit_bytes;
  return profile;
}

}  // namespace loom::cli
