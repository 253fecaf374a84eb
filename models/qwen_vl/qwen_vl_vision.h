// Qwen-VL's vision towers: patches of pictures to tokens of the text.
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
#include "models/qwen_vl/vision_grid.h"

namespace loom::models {

std::shared_ptr<nn::Module> make_qwen_vision(const QwenVisionConfig& config);

}  // namespace loom::models
