// Qwen2-VL, Qwen2.5-VL and Qwen3-VL: vision towers whose squares of patches become tokens of a decoder with M-RoPE.
//
// Letters  B sequences, S positions, P patches, V vocab_size.
// Call     model(input_ids [B,S], pixel_values [P, values of a patch], image_grid_thw, ...) -> logits [B,S,V]. Named:
//            image_grid_thw        t, h, w of each picture in patches: a list of whole numbers, or int32 or int64
//                                  [n,3] of the host. Each takes t h w / spatial_merge_size^2 consecutive positions
//                                  whose id is image_token_id, in reading order.
//            pixel_values_videos, video_grid_thw   the same of videos and video_token_id
//            second_per_grid_ts    fp32, one number a video: Qwen2.5-VL's seconds between frames of a grid
//            attention_mask        int32 [B,S]: 0 for padding, which is behind the tokens of a row
//            position_ids          int32 [3,B,S] or [B,S]; without it mrope_positions.h
//          Without pictures and videos the batch is text and holds no such id.
//          past_key_values and logits_to_keep are the language model's (models/decoder/kv_cache.h): pictures are in
//          the first call of a sequence, and later positions go on behind them.
// Paths    model.visual (qwen_vl_vision.h), model.language_model.{embed_tokens, layers.N, norm, rotary_emb}, lm_head.
// Aliases  as in published weights and YAML files: visual, model.{embed_tokens, layers, norm}; MindSpeed-MM's
//          image_encoder.encoder, image_encoder.projector, text_decoder.{embedding, decoder.layers, output_layer}.
// Towers   vision_tower (the patches and blocks of visual), multi_modal_projector (its mergers), language_model (with
//          lm_head).
// Classes  Qwen2VLForConditionalGeneration, Qwen2VLModel, ...; the towers' classes.
// Errors   ConfigError where pictures, grids and image tokens do not agree, with both numbers.
// Source   transformers' Qwen2VLForConditionalGeneration, Qwen2_5_VLForConditionalGeneration,
//          Qwen3VLForConditionalGeneration.
#pragma once

#include <memory>

#include "models/mixin/multimodal_module.h"
#include "models/qwen_vl/qwen_vl_config.h"

namespace loom::models {

class ModelHub;

class QwenVl : public MultiModalModule, public FSDP2Mixin {
 protected:
  using MultiModalModule::MultiModalModule;
};

// Every parameter is on the meta device; towers are frozen by the config.
std::shared_ptr<QwenVl> build_qwen_vl(const QwenVlConfig& config);

void register_qwen_vl(ModelHub& hub);

}  // namespace loom::models
