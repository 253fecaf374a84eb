// MergeAdapter: a Hugging Face folder with an adapter of peft's folder added to its weights.
//
// Result    W' = W + scale * B A, in fp32 and rounded once to W's dtype; a Conv1D's W is [in, out], so that its update
//           is transposed. Scale and rank are those of the adapter's file. Other tensors keep their bytes; those of
//           modules_to_save are taken from the adapter, in the dtype that the base has them in.
// Ties      where the adapter has one side of tie_word_embeddings, the result has both tensors, and config.json says
//           that they are not tied.
// Files     as the base has them; tokenizer, generation and chat settings are taken over.
// Memory    an adapter's two matrices, and pieces of rows.
// Output    appears whole or not at all; nothing is written over.
// Errors    ConfigError: an adapter of other shapes or names, a base that is damaged.
#pragma once

#include <filesystem>

#include "engine/convert/convert.h"

namespace loom::checkpoint {

struct MergeAdapter {
  std::filesystem::path base;
  std::filesystem::path adapter;
  std::filesystem::path save;
};

struct Merged : Converted {
  std::int64_t adapted = 0;   // tensors with an update
  std::int64_t replaced = 0;  // of modules_to_save
};

Merged merge(const MergeAdapter& options, const CopyWatcher& watcher = {});

}  // namespace loom::checkpoint
