#include "engine/launch/error_file.h"

#include <cstdlib>
#include <ctime>
#include <exception>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

namespace loom::launch {

void write_error_file(std::string_view text) noexcept try {
  const char* const path = std::getenv("TORCHELASTIC_ERROR_FILE");
  if (path == nullptr || *path == '\0') return;
  using nlohmann::json;
  const json extra{{"timestamp", std::to_string(std::time(nullptr))}};
  const json said{{"message", {{"message", std::string(text)}, {"extraInfo", extra}}}};
  std::ofstream(path) << said.dump(-1, ' ', false, json::error_handler_t::replace);
} catch (const std::exception&) {
  // The error has been printed.
}

}  // namespace loom::launch
