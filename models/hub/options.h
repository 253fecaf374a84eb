// ModelOptions: the model of a job, and the source of its initial values.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "engine/core/dtype.h"
#include "models/hub/expert_options.h"
#include "models/hub/shape_options.h"
#include "models/lora/lora_options.h"

namespace loom::models {

struct ModelOptions {
  // `shardloom train` has exactly one of the first three, a plan one of these or of the last two.
  std::optional<std::filesystem::path> model_config;       // a shape; fresh weights. The shardloom program only
  std::optional<std::filesystem::path> init_from_hf_path;  // folder with config.json and safetensors
  // Text of a config.json made of `shape` or of `mm_model`; fresh weights.
  std::optional<std::string> made_config;
  // MindSpeed-MM's model.json (mm_model/mm_model.h). Beside init_from_hf_path it is compared with that configuration.
  std::optional<std::filesystem::path> mm_model;
  std::optional<std::filesystem::path> model_graph;    // a recorded PyTorch model (graph/graph_file.h)
  std::optional<std::filesystem::path> model_weights;  // folder with safetensors, of which only headers are read
  ShapeOptions shape;
  // If an embedding and the output layer hold one parameter, each gets its own, loaded from the same weights.
  bool untie_embeddings_and_output_weights = false;
  DType params_dtype = DType::kF32;  // in which parameters, their gradients and optimizer state are stored; or bf16
  bool downcast_to_bf16 = false;     // loaded fp32 weights are rounded to bf16 once; they stay fp32
  // Accepted for MindSpeed's scripts, without effect: models are always built without bytes.
  bool init_model_with_meta_device = false;
  LoraFlags lora;
  std::vector<std::string> freeze;         // patterns of modules that are not trained
  std::vector<std::string> frozen_towers;  // of mm_model (mixin/multimodal_module.h)
  ExpertOptions experts;
};

}  // namespace loom::models
