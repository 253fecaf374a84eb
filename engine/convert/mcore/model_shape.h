// The sizes of a decoder for conversion between layouts, as models/decoder/decoder_config.h reads them. Private
// to engine/convert.
//
// Threads  any.
// Errors   ConfigError with the file: an unsupported family, and the errors of a decoder's config.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/convert/mcore/mcore.h"
#include "models/decoder/rotary_scaling.h"

namespace loom::checkpoint {

struct ModelShape {
  std::filesystem::path file;
  std::string model_type;  // llama, qwen2, qwen3, qwen3_moe, mixtral
  std::int64_t layers = 0;
  std::int64_t hidden = 0;
  std::int64_t heads = 0;
  std::int64_t groups = 0;  // of heads that share a key and a value
  std::int64_t head_width = 0;
  std::int64_t vocabulary = 0;
  std::int64_t intermediate = 0;
  std::int64_t experts = 0;              // of a layer; 0: none
  std::int64_t expert_intermediate = 0;  // 0: none
  std::int64_t experts_per_token = 0;    // 0: none
  std::int64_t positions = 0;
  double norm_eps = 1e-6;
  double rotary_base = 10000;
  models::RotaryScaling rotary_scaling = {};
  bool tied = false;
  bool qkv_bias = false;
  bool output_bias = false;                     // of the attention's last product
  bool head_norms = false;                      // of queries and keys
  bool mixtral_names = false;                   // of experts in published folders (models/decoder/expert_weights.h)
  std::int64_t sparse_step = 1;                 // every sparse_step-th layer has experts,
  std::vector<std::int64_t> dense_layers = {};  // except these

  bool has_experts(std::int64_t layer) const;
  bool has_dense_layers() const { return experts == 0 || sparse_step > 1 || !dense_layers.empty(); }
  std::int64_t heads_of_group() const { return heads / groups; }
  // Rows of the matrix of queries, keys and values.
  std::int64_t qkv_rows() const { return (heads + 2 * groups) * head_width; }
};

// `flag` begins the message about a folder without config.json.
ModelShape read_model_shape(const std::string& flag, const std::filesystem::path& folder);

// ConfigError if the model differs from the user's description.
void check_model(const ModelShape& shape, const ModelChecks& checks);

}  // namespace loom::checkpoint
