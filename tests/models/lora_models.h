// Small decoders with adapters, for tests of LoRA. Private to tests/models.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/core/error.h"
#include "models/hub/model_hub.h"
#include "models/lora/lora.h"
#include "tests/support/files.h"

namespace loom::models {

constexpr const char* kTinyQwen2 =
    R"({"model_type": "qwen2", "vocab_size": 32, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 16,
        "tie_word_embeddings": false})";

inline std::shared_ptr<nn::Module> tiny_model(const char* config) {
  return ModelHub::global().build(ConfigReader::from_json(config, "config.json"));
}

inline LoraOptions lora_on(std::vector<std::string> targets) {
  LoraOptions options;
  options.r = 4;
  options.alpha = 8;
  options.target_modules = std::move(targets);
  options.where = "--lora-target-modules";
  return options;
}

inline std::vector<std::string> lora_adapted(const char* config, LoraOptions options) {
  return add_lora(*tiny_model(config), std::move(options))->adapted;
}

inline std::string lora_refusal(const char* config, const LoraOptions& options) {
  return test::message_of<ConfigError>([&] { add_lora(*tiny_model(config), options); });
}

}  // namespace loom::models
