#include "engine/config/source_mark.h"

#include <fmt/format.h>

namespace loom::config {

std::string SourceMark::text() const { return line == 0 ? file : fmt::format("{}:{}:{}", file, line, column); }

}  // namespace loom::config
