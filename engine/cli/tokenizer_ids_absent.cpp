// LOOM_TEXT=OFF.
#include "engine/cli/tokenizer_ids.h"
#include "engine/core/error.h"
#include "engine/core/shown_text.h"

namespace loom::cli {

data::TokenIds tokenizer_ids(const std::filesystem::path& folder, const data::DataOptions&, std::int64_t) {
  config_error(
      "{} is the folder of a tokenizer, and this program, which was built with LOOM_TEXT=OFF, reads none; build it with "
      "cmake -DLOOM_TEXT=ON, or train on bytes with --bytes-as-tokens",
      escaped(folder.string()));
}

}  // namespace loom::cli
