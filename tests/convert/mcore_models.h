// Small models of the families that are converted into Megatron-core's layout, made by rule: every element of a folder
// is a number of its own, so that a row in the wrong place is seen.
#pragma once

#include <fmt/format.h>
#include <string>
#include <vector>

#include "engine/convert/mcore/mcore.h"
#include "tests/convert/weight_folders.h"

namespace loom::checkpoint_test {

struct MadeModel {
  std::string type = "qwen2";
  std::int64_t layers = 3;
  std::int64_t hidden = 8;
  std::int64_t heads = 8;
  std::int64_t groups = 4;
  std::int64_t head_width = 2;
  std::int64_t rows = 16;  // of an MLP
  std::int64_t vocabulary = 13;
  std::int64_t experts = 0;
  std::int64_t expert_rows = 4;
  bool fused = false;  // experts
  bool tied = false;
  bool attention_bias = false;  // of Llama and Qwen3
};

inline std::string config_of(const MadeModel& model) {
  std::string more;
  if (model.type == "mixtral") {
    more = fmt::format(R"(, "num_local_experts": {}, "num_experts_per_tok": 2)", model.experts);
  } else if (model.experts > 0) {
    more = fmt::format(
        R"(, "num_experts": {}, "num_experts_per_tok": 2, "moe_intermediate_size": {}, "mlp_only_layers": [0])",
        model.experts, model.expert_rows);
  }
  return fmt::format(R"({{"model_type": "{}", "num_hidden_layers": {}, "hidden_size": {}, "num_attention_heads": {}, )"
                     R"("num_key_value_heads": {}, "head_dim": {}, "intermediate_size": {}, "vocab_size": {}, )"
                     R"("max_position_embeddings": 64, "tie_word_embeddings": {}, "attention_bias": {}{}}})",
                     model.type, model.layers, model.hidden, model.heads, model.groups, model.head_width, model.rows,
                     model.vocabulary, model.tied, model.attention_bias, more);
}

// The folder's tensors, in the model's order.
inline std::vector<Named> weights_of(const MadeModel& model) {
  std::vector<Named> tensors;
  float next = 1;
  const auto add = [&](const std::string& name, const Shape& shape) {
    tensors.push_back(counting(name, shape, next));
    next += static_cast<float>(shape.numel());
  };
  const std::int64_t h = model.hidden, q = model.heads * model.head_width, k = model.groups * model.head_width;
  const bool mixtral = model.type == "mixtral";
  const auto add_mlp = [&](const std::string& to, std::int64_t rows) {
    add(to + (mixtral ? "w1.weight" : "gate_proj.weight"), {rows, h});
    add(to + (mixtral ? "w3.weight" : "up_proj.weight"), {rows, h});
    add(to + (mixtral ? "w2.weight" : "down_proj.weight"), {h, rows});
  };
  const bool has_bias = model.type == "qwen2" || model.attention_bias;
  add("model.embed_tokens.weight", {model.vocabulary, h});
  for (std::int64_t i = 0; i < model.layers; ++i) {
    const std::string layer = fmt::format("model.layers.{}.", i);
    add(layer + "input_layernorm.weight", {h});
    for (const auto& [which, rows] : {std::pair("q", q), std::pair("k", k), std::pair("v", k)}) {
      add(fmt::format("{}self_attn.{}_proj.weight", layer, which), {rows, h});
      if (has_bias) add(fmt::format("{}self_attn.{}_proj.bias", layer, which), {rows});
    }
    if (model.type.starts_with("qwen3")) {
      for (const char* which : {"q", "k"}) {
        add(fmt::format("{}self_attn.{}_norm.weight", layer, which), {model.head_width});
      }
    }
    add(layer + "self_attn.o_proj.weight", {h, q});
    if (model.attention_bias) add(layer + "self_attn.o_proj.bias", {h});
    add(layer + "post_attention_layernorm.weight", {h});
    if (model.experts == 0 || (i == 0 && !mixtral)) {
      add_mlp(layer + "mlp.", model.rows);
      continue;
    }
    const std::string block = layer + (mixtral && !model.fused ? "block_sparse_moe." : "mlp.");
    const std::int64_t rows = mixtral ? model.rows : model.expert_rows;
    add(block + "gate.weight", {model.experts, h});
    if (model.fused) {
      add(block + "experts.gate_up_proj", {model.experts, 2 * rows, h});
      add(block + "experts.down_proj", {model.experts, h, rows});
    }
    for (std::int64_t e = 0; e < model.experts && !model.fused; ++e) {
      add_mlp(fmt::format("{}experts.{}.", block, e), rows);
    }
  }
  add("model.norm.weight", {h});
  if (!model.tied) add("lm_head.weight", {model.vocabulary, h});
  return tensors;
}

inline fs::path make_model(const fs::path& folder, const MadeModel& model) {
  return hf_folder(folder, config_of(model), weights_of(model));
}

inline checkpoint::Converted to_mcore(const fs::path& from, const fs::path& to, checkpoint::HfToMcore options = {}) {
  options.load_dir = from;
  options.save_dir = to;
  return convert(options);
}

inline checkpoint::Converted from_mcore(const fs::path& from, const fs::path& to, const fs::path& config,
                                        checkpoint::McoreToHf options = {}) {
  options.load_dir = from;
  options.save_dir = to;
  options.hf_cfg_dir = config;
  return convert(options);
}

}  // namespace loom::checkpoint_test
