// Qwen-VL's vision towers: patches of pictures to tokens of the text. Private to models.
//
// Letters  P patches of all pictures of a call, M = spatial_merge_size^2, D hidden_size of the text.
// Call     tower(pixel_values [P, patch_values()], grids) -> [P / M, D]; grids is a list of whole numbers, t, h, w of
//          each picture, in patches. Patches are in the processors' order: picture by picture, frame by frame, within a
//          frame one square of M patches after another (engine/images/patches.h).
//          Qwen3-VL gives a list: these features, then those of each of deepstack_visual_indexes.
// Attends  the patches of a frame each other; in Qwen2.5-VL's blocks outside of fullatt_block_indexes only those of a
//          window.
// Paths    patch_embed.proj, blocks.N.{norm1, norm2, attn.{qkv, proj}, mlp}, merger; Qwen3-VL: pos_embed,
//          deepstack_merger_list.N.
// Classes  those of transformers; leaves Conv3d, Linear, LayerNorm, RMSNorm, Embedding.
// dtypes   patches are cast to the patch projection's; rotary angles are fp32, and q and k are turned in fp32.
// Errors   ConfigError for grids that are not whole squares, or have another number of patches than pixel_values.
// Source   transformers' Qwen2VisionTransformerPretrainedModel, Qwen2_5_VisionTransformerPretrainedModel,
//          Qwen3VLVisionModel.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/nn/module.h"
#include "models/qwen_vl/qwen_vl_config.h"

namespace loom::models {

// A picture or a video in patches.
struct VisionGrid {
  std::int64_t t = 0;
  std::int64_t h = 0;
  std::int64_t w = 0;
  bool operator==(const VisionGrid&) const = default;
};

// From a list of whole numbers, or an int32 or int64 tensor [n,3] of the host.
std::vector<VisionGrid> grids_of(const nn::Value& grid_thw);
nn::Value to_value(const std::vector<VisionGrid>& grids);
// ConfigError for one that is not made of whole squares of `merge` x `merge` patches.
void check_grids(const std::vector<VisionGrid>& grids, std::int64_t merge);

std::shared_ptr<nn::Module> make_qwen_vision(const QwenVisionConfig& config);

// The order of Qwen2.5-VL's windows: cell `order[i]` is at place i, and the patches of each window. Cells are squares
// of M patches, numbered row by row, frame by frame, picture by picture.
struct Windows {
  std::vector<std::int64_t> order;
  std::vector<std::int64_t> lengths;
};
Windows windows_of(const std::vector<VisionGrid>& grids, const QwenVisionConfig& config);

// Row and column of each patch within its frame, in the processors' order.
struct PatchPlace {
  std::int64_t row = 0;
  std::int64_t column = 0;
};
std::vector<PatchPlace> places_of(const std::vector<VisionGrid>& grids, std::int64_t merge);

}  // namespace loom::models
