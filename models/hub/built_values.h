// Keys of a configuration that have one built value. Private to models.
#pragma once

#include <string_view>

#include "models/hub/config_reader.h"

namespace loom::models {

inline void only_text(const ConfigReader& reader, std::string_view key, std::string_view built) {
  if (reader.text(key, built) != built) reader.reject(key, "only \"{}\" is built", built);
}

}  // namespace loom::models
