// LOOM_IMAGES=OFF.
#include "engine/cli/words/optional_words.h"

namespace loom::cli {

std::unique_ptr<OptionalWords> multimodal_words(Command&) { return nullptr; }

}  // namespace loom::cli
