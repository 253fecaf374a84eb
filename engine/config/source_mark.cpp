#include "engine/config/source_mark.h"

#include <fmt/core.h>

#include "engine/core/shown_text.h"

namespace loom::config {

std::string SourceMark::text() const {
  return line == 0 ? escaped(file) : fmt::format("{}:{}:{}", escaped(file), line, column);
}

}  // namespace loom::config
