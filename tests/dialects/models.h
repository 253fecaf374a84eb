// Small models by their configuration, for files whose keys mean something only with a model.
#pragma once

#include <filesystem>
#include <string>

#include "tests/support/files.h"

namespace loom::dialects {

constexpr const char* kQwen3Configuration =
    R"({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "vocab_size": 64, "hidden_size": 16,
 "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8,
 "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": false})";

// A folder with that config.json.
inline std::filesystem::path qwen3_folder(const std::string& more = {}) {
  const auto folder = test::fresh_folder() / "qwen3";
  test::write_file(folder / "config.json", kQwen3Configuration);
  if (!more.empty()) test::write_file(folder / more, "");
  return folder;
}

}  // namespace loom::dialects
