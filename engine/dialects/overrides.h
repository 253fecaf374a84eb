// Overrides: words of a command line in the place of keys of a file. Private to engine/dialects.
//
//   --section.key value | --section.key=value | --section.key (true) | --section.key a b (a list)
//   values: null or None; JSON of a list or a mapping; anything else is a scalar
#pragma once

#include "engine/config/value.h"
#include "engine/job/value.h"

namespace loom::dialects {

// The file with the overrides in it, in the order of the words; the last of a repeated key holds. Their place is
// "command line". ConfigError for a word that belongs to no key.
config::Value with_overrides(const config::Value& file, const job::Texts& words);

}  // namespace loom::dialects
