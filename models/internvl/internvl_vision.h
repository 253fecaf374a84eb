// InternVL's vision tower: pixels to one vector per patch, and one for the image. Private to models.
//
// Letters  N images, C channels, P patches of an image, D hidden_size of the tower.
// Call     tower(pixel_values [N,C,height,width]) -> [N, 1 + P, D]; position 0 is the class token's. Sides are
//          multiples of patch_size. Positions are those of an image of image_size, interpolated (bicubic) for another
//          size.
// Paths    embeddings.{cls_token, position_embeddings, patch_embeddings.projection}, encoder.layer.N.{layernorm_before,
//          attention.{q,k,v}_proj, attention.{q,k}_norm, attention.projection_layer, lambda_1, layernorm_after,
//          mlp.{fc1, fc2}, lambda_2}, layernorm (without mean pooling).
// Classes  InternVLVisionModel, InternVLVisionEmbeddings, InternVLVisionPatchEmbeddings, InternVLVisionEncoder,
//          InternVLVisionLayer, InternVLVisionAttention, InternVLVisionMLP; leaves Conv2d, Linear, LayerNorm, RMSNorm.
// dtypes   pixels are cast to the patch projection's: a tower that is left out (ignored) computes in its own dtype,
//          whatever dtype the model around it is cast to.
// Grain    attention and RMSNorm go through nn::functional.
// Errors   ConfigError for images of another number of channels, or not of whole patches.
// Source   transformers' InternVLVisionModel.
#pragma once

#include <memory>

#include "engine/nn/module.h"
#include "models/internvl/internvl_config.h"

namespace loom::models {

std::shared_ptr<nn::Module> make_internvl_vision(const InternVLVisionConfig& config);

}  // namespace loom::models
