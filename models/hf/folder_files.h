// What a Hugging Face folder holds beside config.json and weights: tokenizers and other files that training does not
// change; and what a saved folder takes over from the one the weights came from.
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

// The files of a tokenizer in a folder, by name, sorted. None for a path that is no folder.
std::vector<std::string> tokenizer_files(const std::filesystem::path& folder);

// Whether a folder has a tokenizer.json.
bool has_tokenizer(const std::filesystem::path& folder);

// ConfigError for a folder that has a tokenizer, unless the user asks for bytes. `what` is what would be read as bytes
// ("the data", "the prompt"); `advice` is what else to do, or empty.
void refuse_unread_tokenizer(const std::filesystem::path& folder, bool bytes_as_tokens, std::string_view what,
                             std::string_view advice = "");

// Copies the tokenizer's files, and those of generation, chat and image settings, to another folder, which is made.
// Nothing where both are one folder or there are none.
void carry_files(const std::filesystem::path& from, const std::filesystem::path& to);

// The type that most elements of the floating tensors have; none where there is no such tensor.
std::optional<DType> main_dtype(const io::HfWeights& weights);

// That of the largest one; fp32 where there are none.
DType main_dtype(const std::vector<std::pair<std::string, Tensor>>& tensors);

// Attention masks and rotary frequencies, which old versions stored: weights are whole without them.
bool is_stored_buffer(std::string_view name);

// A file as it is.
std::string file_text(const std::filesystem::path& path);

// Changes to a config.json; every other key stays as it is and where it is.
struct ConfigEdits {
  bool untied = false;         // tie_word_embeddings: false, in a text_config too
  std::optional<DType> dtype;  // of the weights, where the file says another one, or says none and it is not fp32
};
std::string edited_config(const std::string& config_json, const ConfigEdits& edits);

}  // namespace loom::models
