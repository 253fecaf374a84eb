// LOOM_CONVERT=OFF.
#include "engine/cli/words/optional_words.h"

namespace loom::cli {

std::unique_ptr<OptionalWords> convert_words(Command&) { return nullptr; }

}  // namespace loom::cli
