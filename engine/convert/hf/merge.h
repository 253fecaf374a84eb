// MergeAdapter: adds an adapter of peft's folder to the weights of a Hugging Face folder.
//
// Result    W' = W + scale * B A, in fp32 and rounded once to W's dtype; a Conv1D's W is [in, out], so that its update
//           is transposed. Scale and rank come from the adapter's file. Other tensors keep their bytes; tensors of
//           modules_to_save are taken from the adapter, in the base's dtype.
// Ties      if the adapter has one side of tie_word_embeddings, the result has both tensors, and config.json declares
//           them untied.
// Files     as in the base; tokenizer, generation and chat settings are copied.
// Memory    an adapter's two matrices, and pieces of rows.
// Output    appears whole or not at all; nothing is overwritten.
// Errors    ConfigError: an adapter with other shapes or names, a damaged base.
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
