// What the tokenizer of a folder says of the ids of the data. Private to engine/cli.
//
// Errors   ConfigError: a tokenizer that cannot be read, or that has more ids than the model has rows for. A build with
//          LOOM_TEXT=OFF reads none (tokenizer_ids_absent.cpp).
#pragma once

#include <cstdint>
#include <filesystem>

#include "engine/data/options.h"
#include "engine/data/token_batches.h"

namespace loom::cli {

// `vocab_size` of the model; 0 where it is not known.
data::TokenIds tokenizer_ids(const std::filesystem::path& folder, const data::DataOptions& data,
                             std::int64_t vocab_size);

}  // namespace loom::cli
