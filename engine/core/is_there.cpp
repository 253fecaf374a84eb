#include "engine/core/is_there.h"

#include <system_error>

namespace loom {

bool is_there(const std::filesystem::path& path) {
  std::error_code unreadable;
  return std::filesystem::exists(path, unreadable);
}

}  // namespace loom
