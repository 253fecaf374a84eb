// merge_pairs: for each of --merge-group-keys, merges all pairs .bin/.idx of --input whose names contain it, in the
// order of their names, into one pair. Private to engine/text.
//
// Errors  ConfigError: no pair for a key, a .bin without its .idx or the reverse, dtypes that differ.
#pragma once

#include "engine/text/preprocess/preprocess.h"

namespace loom::data {

PreprocessSummary merge_pairs(const PreprocessOptions& options, const PreprocessWatcher& watch);

}  // namespace loom::data
