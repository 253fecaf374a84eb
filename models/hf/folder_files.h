// Files of a Hugging Face folder besides config.json and weights: tokenizers and other files that training does not
// change; and the files that a saved folder takes over from the source of its weights.
//
// Errors   ConfigError for a file that cannot be read or written.
// Threads  any.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/core/dtype.h"
#include "engine/formats/safetensors/hf_weights.h"
#include "engine/tensor/tensor.h"

namespace loom::models {

// The files of a tokenizer in a folder, by name, sorted. None for a path that is not a folder.
std::vector<std::string> tokenizer_files(const std::filesystem::path& folder);

// Whether a folder has a tokenizer.json.
bool has_tokenizer(const std::filesystem::path& folder);

// ConfigError for a folder that has a tokenizer, unless the user selects bytes. `what` is the text that would be read
// as bytes ("the data", "the prompt"); `advice` is an alternative, or empty.
void refuse_unread_tokenizer(const std::filesystem::path& folder, bool bytes_as_tokens, std::string_view what,
                             std::string_view advice = "");

// Copies the tokenizer's files, and the files of generation, chat and image settings, to another folder, which is made.
// Does nothing if both are one folder or there are no files.
void carry_files(const std::filesystem::path& from, const std::filesystem::path& to);

// The dtype of most elements in floating tensors; none if there is no such tensor.
std::optional<DType> main_dtype(const io::HfWeights& weights);

// The dtype of the largest one; fp32 if there are none.
DType main_dtype(const std::vector<std::pair<std::string, Tensor>>& tensors);

// Attention masks and rotary frequencies, which old versions stored: weights are complete without them.
bool is_stored_buffer(std::string_view name);

// The unchanged contents of a file.
std::string file_text(const std::filesystem::path& path);

// Changes to a config.json; every other key keeps its value and place.
struct ConfigEdits {
  bool untied = false;         // tie_word_embeddings: false, in a text_config or llm_config too
  std::optional<DType> dtype;  // of the weights, if the file has another one, or has none and it is not fp32
};
std::string edited_config(const std::string& config_json, const ConfigEdits& edits);

}  // namespace loom::models
