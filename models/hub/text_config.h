// The decoder in a model that generates text: of the whole model, or of a multimodal one its text.
#pragma once

#include <filesystem>

#include "models/decoder/decoder_config.h"

namespace loom::models {

// From a folder's config.json, a .json or a .yaml file. Errors as load_decoder_config().
DecoderConfig load_text_config(const std::filesystem::path& path);

}  // namespace loom::models
