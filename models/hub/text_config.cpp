#include "models/hub/text_config.h"

#include "models/decoder/decoder_families.h"
#include "models/hub/config_reader.h"
#include "models/internvl/internvl_config.h"
#include "models/qwen_vl/qwen_vl_config.h"

namespace loom::models {

DecoderConfig load_text_config(const std::filesystem::path& path) {
  if (is_qwen_vl(path)) return load_qwen_vl_config(path).text;
  if (is_internvl(path)) return load_internvl_config(path).text;
  return load_decoder_config(path);
}

}  // namespace loom::models
