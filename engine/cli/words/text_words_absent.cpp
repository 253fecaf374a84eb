// LOOM_TEXT=OFF.
#include "engine/cli/words/optional_words.h"

namespace loom::cli {

std::unique_ptr<OptionalWords> text_words(Command&) { return nullptr; }

}  // namespace loom::cli
