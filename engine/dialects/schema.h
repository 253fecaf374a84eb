// The JSON Schema of a dialect's files, for editors: its keys with their types, from the rows.
#pragma once

#include <string>

#include "engine/dialects/dialect.h"

namespace loom::dialects {

// Draft 7. ConfigError for kTorchtitan, which has no files.
std::string schema_of(Dialect dialect);

}  // namespace loom::dialects
