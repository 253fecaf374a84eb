// InternVL: a vision tower whose patches become tokens of a decoder.
//
// Letters  B sequences, S positions, N images, C channels, V vocab_size.
// Call     model(input_ids [B,S], pixel_values [N,C,height,width]) -> logits [B,S,V]. Sides are multiples of
//          InternVLConfig::image_unit(), image_size or others. Each image takes height * width / image_unit()^2
//          consecutive positions whose id is image_token_id; images fill such positions in reading order. Without
//          pixel_values the batch is text and holds no such id. attention_mask says what is padding, which is behind
//          a row's tokens: they do not see it.
//          past_key_values, attention_mask, position_ids and logits_to_keep are the language model's
//          (models/decoder/kv_cache.h): images are in the first call of a sequence.
// Paths    model.vision_tower (internvl_vision.h), model.multi_modal_projector.{layer_norm, linear_1, linear_2},
//          model.language_model.{embed_tokens, layers.N, norm, rotary_emb}, lm_head.
// Aliases  as in published YAML files and in checkpoints before transformers 5: text_decoder.{embedding,
//          decoder.layers, rotary_pos_emb, output_layer}, image_encoder, vision_model, language_model.model,
//          language_model.lm_head, ... (the table in internvl.cpp).
// Towers   vision_tower, multi_modal_projector, language_model (with lm_head).
// Classes  InternVLForConditionalGeneration, InternVLModel, InternVLMultiModalProjector, and the towers' classes.
// dtypes   image features are cast to the projector's dtype, then to the embeddings'.
// Errors   ConfigError if image tokens and image features differ in number, with both; for images with other sides.
// Source   transformers' InternVLForConditionalGeneration.
#pragma once

#include <memory>

#include "models/internvl/internvl_config.h"
#include "models/mixin/multimodal_module.h"

namespace loom::models {

class ModelHub;

class InternVL : public MultiModalModule, public FSDP2Mixin {
 protected:
  using MultiModalModule::MultiModalModule;
};

// Every parameter is on the meta device; towers are frozen by the config.
std::shared_ptr<InternVL> build_internvl(const InternVLConfig& config);

void register_internvl(ModelHub& hub);

}  // namespace loom::models
