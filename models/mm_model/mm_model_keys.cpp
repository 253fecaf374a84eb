// The rows of model.json's keys.
#include <algorithm>
#include <cmath>
#include <fmt/format.h>

#include "engine/config/section.h"
#include "models/mm_model/mm_values.h"

namespace loom::models::mm {
namespace {

using config::Value;
using enum MmSection;
using Read = bool (*)(const MmKey& key, const Value& value, MmModel& model);

// --- values

bool is_on(const Value& value) {
  if (const auto flag = value.boolean()) return *flag;
  value.refuse("true or false");
}

std::int64_t whole_from(const Value& value, std::int64_t least) {
  const auto number = value.whole();
  if (number && *number >= least && *number <= config::kMostCount) return *number;
  value.refuse(fmt::format("a whole number from {} to {}", least, config::kMostCount));
}

double above_zero(const Value& value) {
  const auto number = value.number();
  if (number && std::isfinite(*number) && *number > 0) return *number;
  value.refuse("a number above 0");
}

std::string word_of(const Value& value) {
  if (value.is_text() && !value.scalar().empty()) return value.scalar();
  value.refuse("a text");
}

// --- built: `about` is the key of config.json

bool take_count(const MmKey& key, const Value& value, MmModel& model) {
  whole_from(value, 1);
  set_value(model, key.about, value);
  return true;
}
bool take_id(const MmKey& key, const Value& value, MmModel& model) {
  whole_from(value, 0);
  set_value(model, key.about, value);
  return true;
}
bool take_number(const MmKey& key, const Value& value, MmModel& model) {
  above_zero(value);
  set_value(model, key.about, value);
  return true;
}
bool take_switch(const MmKey& key, const Value& value, MmModel& model) {
  is_on(value);
  set_value(model, key.about, value);
  return true;
}
bool take_list(const MmKey& key, const Value& value, MmModel& model) {
  if (!value.is_list()) value.refuse("a list of whole numbers");
  for (const Value& item : value.items()) whole_from(item, 0);
  set_value(model, key.about, value);
  return true;
}

bool take_norm(const MmKey& key, const Value& value, MmModel& model) {
  const std::string word = word_of(value);
  if (word != "LayerNorm" && word != "RMSNorm") value.refuse("LayerNorm or RMSNorm");
  set_value(model, key.about, scalar_of(value, word == "RMSNorm" ? "rms_norm" : "layer_norm", Value::Style::kQuoted));
  return true;
}

// The first names of two types.
std::string rope_type_of(const std::string& type) {
  if (type == "mrope") return "default";
  return type == "su" ? "longrope" : type;
}

// The keys of its mapping go beside rope_theta and mrope_section.
bool take_rope_scaling(const MmKey& key, const Value& value, MmModel& model) {
  if (!value.is_mapping()) value.refuse("a mapping, or null");
  for (const Value& member : value.items()) {
    if (member.is_null()) continue;
    if (member.is_mapping() || member.key().find('.') != std::string::npos) member.refuse("keys of scaled positions");
    if (member.key() == "type" || member.key() == "rope_type") {
      const std::string type = rope_type_of(word_of(member));
      set_value(model, fmt::format("{}.rope_type", key.about), scalar_of(member, type, Value::Style::kQuoted));
    } else {
      set_value(model, fmt::format("{}.{}", key.about, member.key()), member);
    }
  }
  return true;
}

bool take_untied(const MmKey& key, const Value& value, MmModel& model) {
  const bool untied = is_on(value);
  set_value(model, key.about, scalar_of(value, untied ? "false" : "true"));
  model.flags.push_back({"--untie-embeddings-and-output-weights", value.path(), untied ? "true" : "false"});
  return true;
}

bool take_weights(const MmKey&, const Value& value, MmModel& model) {
  model.init_from_hf_path = word_of(value);
  return true;
}

template <const char* kTower>
bool take_freeze(const MmKey&, const Value& value, MmModel& model) {
  if (is_on(value)) model.frozen.emplace_back(kTower);
  return true;
}
constexpr char kVisionTower[] = "vision_tower";
constexpr char kProjectorTower[] = "multi_modal_projector";
constexpr char kTextTower[] = "language_model";

// What other keys say together with it.
template <const char* kTold, Read kTake>
bool take_told(const MmKey& key, const Value& value, MmModel& model) {
  MmKey told = key;
  told.about = kTold;
  return kTake(told, value, model);
}
constexpr char kInputSize[] = "told.input_size", kInnerSize[] = "told.ffn_hidden_size",
               kVitSize[] = "told.vit_hidden_size", kTextSize[] = "told.llm_hidden_size",
               kTowerInner[] = "told.intermediate_size", kQkvBias[] = "told.add_qkv_bias",
               kQkNorm[] = "told.qk_layernorm";
static_assert(kMmInnerSize == kTowerInner && kMmQkvBias == kQkvBias && kMmQkNorm == kQkNorm);

// --- flags of the job

std::string text_of(const Value& value) {
  if (const auto flag = value.boolean()) return *flag ? "true" : "false";
  if (!value.is_scalar()) value.refuse("one value");
  return value.scalar();
}

// The key gives the flag's value.
template <const char* kFlag>
bool take_flag(const MmKey&, const Value& value, MmModel& model) {
  model.flags.push_back({kFlag, value.path(), text_of(value), true});
  return true;
}
// The flag alone counts; where it is given, the key must agree.
template <const char* kFlag>
bool agree_with(const MmKey&, const Value& value, MmModel& model) {
  model.flags.push_back({kFlag, value.path(), text_of(value)});
  return true;
}
constexpr char kGranularity[] = "--recompute-granularity", kMethod[] = "--recompute-method",
               kLayers[] = "--recompute-num-layers", kSeqLength[] = "--seq-length", kFp16[] = "--fp16",
               kBf16[] = "--bf16";

// --- one value

bool is_false(const MmKey&, const Value& value, MmModel&) { return !is_on(value); }
bool is_true(const MmKey&, const Value& value, MmModel&) { return is_on(value); }
bool never(const MmKey&, const Value&, MmModel&) { return false; }

template <std::int64_t kNumber>
bool is_number(const MmKey&, const Value& value, MmModel&) {
  const auto number = value.number();
  if (!number) value.refuse(fmt::to_string(kNumber));
  return *number == static_cast<double>(kNumber);
}
bool is_small_epsilon(const MmKey&, const Value& value, MmModel&) { return above_zero(value) == 1e-6; }

template <const char* const* kWords>
bool is_word(const MmKey&, const Value& value, MmModel&) {
  const std::string text = word_of(value);
  for (const char* const* word = kWords; *word != nullptr; ++word) {
    if (text == *word) return true;
  }
  return false;
}
constexpr const char* kQwen2Tower[] = {"qwen2vit", nullptr};
constexpr const char* kQwen25Tower[] = {"qwen2vit", "qwen2_5_vit", nullptr};
constexpr const char* kQwen3Tower[] = {"qwen3vit", nullptr};
constexpr const char* kInternTower[] = {"InternViT", nullptr};
constexpr const char* kQwenProjector[] = {"lnmlp", nullptr};
constexpr const char* kInternProjector[] = {"InternVLMLP", nullptr};
constexpr const char* kQwen2Text[] = {"qwen2lm", "qwen2_lm", nullptr};
constexpr const char* kQwen25Text[] = {"qwen2_5_lm", "qwen2_5lm", "qwen2lm", nullptr};
constexpr const char* kQwen3Text[] = {"qwen3lm", "qwen3_lm", nullptr};
constexpr const char* kRmsNorm[] = {"RMSNorm", nullptr};
constexpr const char* kLayerNorm[] = {"LayerNorm", nullptr};
constexpr const char* kQuickGelu[] = {"quick_gelu", nullptr};
constexpr const char* kSilu[] = {"silu", nullptr};
constexpr const char* kTanhGelu[] = {"gelu_pytorch_tanh", nullptr};
constexpr const char* kGelu[] = {"gelu", nullptr};
constexpr const char* kMrope[] = {"mrope", nullptr};
constexpr const char* kRope[] = {"rope", nullptr};
constexpr const char* kShuffle[] = {"v2", nullptr};
constexpr const char* kDefault[] = {"default", nullptr};
constexpr const char* kMeans[] = {"default", "raw", nullptr};

// --- rows

constexpr MmKey built(MmSection section, std::string_view name, unsigned models, std::string_view to, Read read) {
  return {section, name, models, MmEffect::kBuilt, to, read};
}
// Fresh weights need it.
constexpr MmKey needed(MmSection section, std::string_view name, unsigned models, std::string_view to, Read read) {
  return {section, name, models, MmEffect::kBuilt, to, read, true};
}
constexpr MmKey one_value(MmSection section, std::string_view name, unsigned models, std::string_view about,
                          Read read) {
  return {section, name, models, MmEffect::kOneValue, about, read};
}
constexpr MmKey no_effect(MmSection section, std::string_view name, unsigned models, std::string_view about,
                          Read read = nullptr) {
  return {section, name, models, MmEffect::kNone, about, read};
}

constexpr unsigned kNotQwen2 = kMmQwen25 | kMmQwen3;
constexpr std::string_view kTorchKernels = "--kernels and --use-fused-* choose kernels";
constexpr std::string_view kStages = "a rank has all layers of its towers";
constexpr std::string_view kDtypes = "param_dtype and --params-dtype choose dtypes";
constexpr std::string_view kNoDropout = "dropout is not built in these models; write 0";
constexpr std::string_view kNoParallel = "the launch flags and fsdp2_config.yaml have the axes of ranks; write 1";
constexpr std::string_view kNoSequence = "the launch flags and fsdp2_config.yaml have the axes of ranks; write false";
constexpr std::string_view kTowerRecompute = "recompute_modules of fsdp2_config.yaml selects the tower's blocks";

constexpr MmKey kKeys[] = {
    // --- the model
    built(kModel, "model_id", kMmAll, "model_type", nullptr),
    built(kModel, "init_from_hf_path", kMmAll, "--init-from-hf-path", take_weights),
    needed(kModel, "img_context_token_id", kMmAll, "image_token_id", take_id),
    built(kModel, "video_token_id", kMmQwen, "video_token_id", take_id),
    built(kModel, "vision_start_token_id", kMmQwen, "vision_start_token_id", take_id),
    built(kModel, "vision_end_token_id", kMmQwen, "vision_end_token_id", take_id),
    built(kModel, "downsample_ratio", kMmInternvl, "downsample_ratio", take_number),
    one_value(kModel, "select_layer", kMmInternvl, "the last layer's features are built; write -1", is_number<-1>),
    one_value(kModel, "ps_version", kMmInternvl, "one pixel shuffle is built; write v2", is_word<kShuffle>),
    one_value(kModel, "add_rmsnorm_offset", kMmInternvl, "norms have no offset; write false", is_false),
    one_value(kModel, "add_text_encoder", kMmAll, "a text encoder is not built; write false", is_false),
    one_value(kModel, "text_encoder", kMmAll, "is not built; write null", never),
    one_value(kModel, "video_encoder", kMmAll, "is not built: image_encoder reads videos; write null", never),
    one_value(kModel, "audio_encoder", kMmAll, "is not built; write null", never),
    one_value(kModel, "reward_process", kMmAll, "a reward model with pictures is not built; write false", is_false),
    no_effect(kModel, "pre_process", kMmAll, kStages),
    no_effect(kModel, "post_process", kMmAll, kStages),
    no_effect(kModel, "img_embedding_idx", kMmAll, "features go where img_context_token_id is"),
    no_effect(kModel, "trust_remote_code", kMmAll, "no code of a model is run"),
    no_effect(kModel, "patch", kMmAll, "has patches of MindSpeed-MM's own code"),

    one_value(kLoss, "compute_mode", kMmAll, "--loss-chunk-size computes the loss in chunks; write default",
              is_word<kDefault>),
    one_value(kLoss, "loss_type", kMmAll, "--loss-reduction chooses the mean; write default or raw", is_word<kMeans>),
    one_value(kLoss, "router_aux_loss_coef", kMmAll, "these models have no routers; write 0", is_number<0>),
    no_effect(kLoss, "chunk_size", kMmAll, "--loss-chunk-size has the size of a chunk"),

    // --- the tower
    one_value(kVision, "model_id", kMmQwen2, "is no tower of this model; write qwen2vit", is_word<kQwen2Tower>),
    one_value(kVision, "model_id", kMmQwen25, "is no tower of this model; write qwen2vit", is_word<kQwen25Tower>),
    one_value(kVision, "model_id", kMmQwen3, "is no tower of this model; write qwen3vit", is_word<kQwen3Tower>),
    one_value(kVision, "model_id", kMmInternvl, "is no tower of this model; write InternViT", is_word<kInternTower>),
    built(kVision, "freeze", kMmAll, "the tower is not trained; true if the key is absent", take_freeze<kVisionTower>),
    needed(kVision, "num_layers", kMmQwen, "vision_config.depth", take_count),
    needed(kVision, "num_layers", kMmInternvl, "vision_config.num_hidden_layers", take_count),
    needed(kVision, "hidden_size", kMmQwen2, "vision_config.embed_dim", take_count),
    needed(kVision, "hidden_size", kNotQwen2 | kMmInternvl, "vision_config.hidden_size", take_count),
    needed(kVision, "num_attention_heads", kMmQwen, "vision_config.num_heads", take_count),
    needed(kVision, "num_attention_heads", kMmInternvl, "vision_config.num_attention_heads", take_count),
    needed(kVision, "ffn_hidden_size", kMmQwen2, "vision_config.mlp_ratio", take_told<kTowerInner, take_count>),
    needed(kVision, "ffn_hidden_size", kNotQwen2 | kMmInternvl, "vision_config.intermediate_size", take_count),
    built(kVision, "intermediate_size", kNotQwen2, "vision_config.intermediate_size", take_count),
    needed(kVision, "patch_size", kMmAll, "vision_config.patch_size", take_count),
    built(kVision, "in_channels", kMmQwen, "vision_config.in_channels", take_count),
    built(kVision, "spatial_merge_size", kMmQwen, "vision_config.spatial_merge_size", take_count),
    built(kVision, "temporal_patch_size", kMmQwen, "vision_config.temporal_patch_size", take_count),
    needed(kVision, "window_attn_size", kMmQwen25, "vision_config.window_size", take_count),
    needed(kVision, "fullatt_block_indexes", kMmQwen25, "vision_config.fullatt_block_indexes", take_list),
    needed(kVision, "tokens_per_second", kMmQwen25, "vision_config.tokens_per_second", take_count),
    needed(kVision, "deepstack_visual_indexes", kMmQwen3, "vision_config.deepstack_visual_indexes", take_list),
    needed(kVision, "max_position_embeddings", kMmQwen3, "vision_config.num_position_embeddings", take_count),
    built(kVision, "num_channels", kMmInternvl, "vision_config.num_channels", take_count),
    needed(kVision, "image_size", kMmInternvl, "vision_config.image_size", take_count),
    needed(kVision, "layernorm_epsilon", kMmInternvl, "vision_config.layer_norm_eps", take_number),
    built(kVision, "normalization", kMmInternvl, "vision_config.norm_type", take_norm),
    built(kVision, "add_qkv_bias", kMmInternvl, "vision_config.attention_bias", take_switch),
    built(kVision, "qk_layernorm", kMmInternvl, "vision_config.use_qk_norm", take_switch),
    built(kVision, "initializer_factor", kMmInternvl, "vision_config.layer_scale_init_value", take_number),
    built(kVision, "init_method_std", kMmAll, "vision_config.initializer_range", take_number),
    built(kVision, "downsample_ratio", kMmInternvl, "downsample_ratio", take_number),
    one_value(kVision, "layernorm_epsilon", kMmQwen, "the tower's epsilon is 1e-6; write that", is_small_epsilon),
    one_value(kVision, "normalization", kMmQwen2 | kMmQwen3, "the tower has LayerNorm; write that",
              is_word<kLayerNorm>),
    one_value(kVision, "normalization", kMmQwen25, "the tower has RMSNorm; write that", is_word<kRmsNorm>),
    one_value(kVision, "activation_func", kMmQwen2, "the tower has quick_gelu; write that", is_word<kQuickGelu>),
    one_value(kVision, "activation_func", kMmQwen25, "the tower has silu; write that", is_word<kSilu>),
    one_value(kVision, "activation_func", kMmQwen3, "the tower has gelu_pytorch_tanh; write that", is_word<kTanhGelu>),
    one_value(kVision, "activation_func", kMmInternvl, "the tower has gelu; write that", is_word<kGelu>),
    one_value(kVision, "gated_linear_unit", kMmQwen2 | kMmQwen3 | kMmInternvl,
              "the tower's MLP has no gate; write false", is_false),
    one_value(kVision, "gated_linear_unit", kMmQwen25, "the tower's MLP has a gate; write true", is_true),
    one_value(kVision, "add_bias_linear", kMmAll, "the tower's matrices have biases; write true", is_true),
    one_value(kVision, "add_bias_conv", kMmQwen3, "the patches' matrix has a bias; write true", is_true),
    one_value(kVision, "add_qkv_bias", kMmQwen, "the tower's matrices have biases; write true", is_true),
    one_value(kVision, "qk_layernorm", kMmQwen, "the tower's heads have no norms; write false", is_false),
    one_value(kVision, "q_layernorm", kMmInternvl, "norms of heads are RMSNorm; write that", is_word<kRmsNorm>),
    one_value(kVision, "k_layernorm", kMmInternvl, "norms of heads are RMSNorm; write that", is_word<kRmsNorm>),
    one_value(kVision, "post_layer_norm", kMmAll, "no norm is behind the last block; write false", is_false),
    one_value(kVision, "select_layer", kMmInternvl, "the last layer's features are built; write -1", is_number<-1>),
    one_value(kVision, "ps_version", kMmInternvl, "one pixel shuffle is built; write v2", is_word<kShuffle>),
    one_value(kVision, "hidden_dropout", kMmAll, kNoDropout, is_number<0>),
    one_value(kVision, "attention_dropout", kMmAll, kNoDropout, is_number<0>),
    one_value(kVision, "drop_path_rate", kMmInternvl, "dropping of whole branches is not built; write 0", is_number<0>),
    one_value(kVision, "pre_tockens", kMmInternvl, "windows of attention are not built; write 2147483647",
              is_number<2147483647>),
    one_value(kVision, "next_tockens", kMmInternvl, "windows of attention are not built; write 2147483647",
              is_number<2147483647>),
    one_value(kVision, "context_parallel_size", kMmAll, kNoParallel, is_number<1>),
    one_value(kVision, "sequence_parallel", kMmAll, kNoSequence, is_false),
    no_effect(kVision, "tokens_per_second", kMmQwen3, "frames of this model have timestamps as text"),
    no_effect(kVision, "llm_hidden_size", kMmQwen, "hidden_size of the projector says it"),
    no_effect(kVision, "pipeline_num_layers", kMmAll, kStages),
    no_effect(kVision, "recompute_granularity", kMmAll, kTowerRecompute),
    no_effect(kVision, "recompute_method", kMmAll, kTowerRecompute),
    no_effect(kVision, "recompute_num_layers", kMmAll, kTowerRecompute),
    no_effect(kVision, "params_dtype", kMmAll, kDtypes),
    no_effect(kVision, "fp16", kMmAll, "must agree with --fp16 where that is given", agree_with<kFp16>),
    no_effect(kVision, "bf16", kMmAll, "must agree with --bf16 where that is given", agree_with<kBf16>),
    no_effect(kVision, "use_fused_rotary_pos_emb", kMmQwen, kTorchKernels),
    no_effect(kVision, "bias_activation_fusion", kMmAll, kTorchKernels),
    no_effect(kVision, "attn_implementation", kMmAll, kTorchKernels),
    no_effect(kVision, "attn_layout", kMmAll, kTorchKernels),
    no_effect(kVision, "attention_softmax_in_fp32", kMmAll, "softmax is computed in fp32"),
    no_effect(kVision, "attention_mask_type", kMmQwen, "segments of pictures are attended to whole"),
    no_effect(kVision, "output_hidden_states", kMmInternvl, "is of calls from Python"),
    no_effect(kVision, "use_return_dict", kMmInternvl, "is of calls from Python"),
    no_effect(kVision, "synchronize_per_layer", kMmAll, "num_to_forward_prefetch of fsdp2_config.yaml counts"),

    // --- the projector
    one_value(kProjector, "model_id", kMmQwen, "is no projector of this model; write lnmlp", is_word<kQwenProjector>),
    one_value(kProjector, "model_id", kMmInternvl, "is no projector of this model; write InternVLMLP",
              is_word<kInternProjector>),
    built(kProjector, "freeze", kMmAll, "the projector is not trained; false if the key is absent",
          take_freeze<kProjectorTower>),
    built(kProjector, "hidden_size", kMmQwen2, "vision_config.hidden_size", take_count),
    built(kProjector, "hidden_size", kNotQwen2, "vision_config.out_hidden_size", take_count),
    built(kProjector, "input_size", kMmQwen, "must be hidden_size of the tower", take_told<kInputSize, take_count>),
    built(kProjector, "ffn_hidden_size", kMmQwen, "must be hidden_size of the tower * spatial_merge_size^2",
          take_told<kInnerSize, take_count>),
    built(kProjector, "vit_hidden_size", kMmInternvl, "must be hidden_size of the tower",
          take_told<kVitSize, take_count>),
    built(kProjector, "llm_hidden_size", kMmInternvl, "must be hidden_size of text_decoder",
          take_told<kTextSize, take_count>),
    built(kProjector, "downsample_ratio", kMmInternvl, "downsample_ratio", take_number),
    one_value(kProjector, "layernorm_epsilon", kMmQwen, "the projector's epsilon is 1e-6; write that",
              is_small_epsilon),
    one_value(kProjector, "normalization", kMmQwen2 | kMmQwen3, "the projector has LayerNorm; write that",
              is_word<kLayerNorm>),
    one_value(kProjector, "normalization", kMmQwen25, "the projector has RMSNorm; write that", is_word<kRmsNorm>),
    one_value(kProjector, "activation_func", kMmAll, "the projector has gelu; write that", is_word<kGelu>),
    one_value(kProjector, "gated_linear_unit", kMmAll, "the projector has no gate; write false", is_false),
    one_value(kProjector, "add_bias_linear", kMmAll, "the projector's matrices have biases; write true", is_true),
    one_value(kProjector, "use_postshuffle_norm", kMmQwen3, "the norm is in front of the shuffle; write false",
              is_false),
    one_value(kProjector, "context_parallel_size", kMmAll, kNoParallel, is_number<1>),
    no_effect(kProjector, "num_layers", kMmAll, "a projector is two matrices"),
    no_effect(kProjector, "num_attention_heads", kMmAll, "a projector has no attention"),
    no_effect(kProjector, "params_dtype", kMmAll, kDtypes),
    no_effect(kProjector, "fp16", kMmAll, "must agree with --fp16 where that is given", agree_with<kFp16>),
    no_effect(kProjector, "bf16", kMmAll, "must agree with --bf16 where that is given", agree_with<kBf16>),
    no_effect(kProjector, "bias_activation_fusion", kMmAll, kTorchKernels),

    // --- the text
    one_value(kText, "model_id", kMmQwen2, "is no text of this model; write qwen2lm", is_word<kQwen2Text>),
    one_value(kText, "model_id", kMmQwen25, "is no text of this model; write qwen2_5_lm", is_word<kQwen25Text>),
    one_value(kText, "model_id", kMmQwen3, "is no text of this model; write qwen3_lm", is_word<kQwen3Text>),
    no_effect(kText, "model_id", kMmInternvl, "add_qkv_bias and qk_layernorm say which text it is"),
    built(kText, "freeze", kMmAll, "the text is not trained; false if the key is absent", take_freeze<kTextTower>),
    needed(kText, "num_layers", kMmAll, "text_config.num_hidden_layers", take_count),
    needed(kText, "hidden_size", kMmAll, "text_config.hidden_size", take_count),
    needed(kText, "ffn_hidden_size", kMmAll, "text_config.intermediate_size", take_count),
    built(kText, "intermediate_size", kMmAll, "text_config.intermediate_size", take_count),
    needed(kText, "num_attention_heads", kMmAll, "text_config.num_attention_heads", take_count),
    built(kText, "num_query_groups", kMmAll, "text_config.num_key_value_heads", take_count),
    built(kText, "num_key_value_heads", kMmAll, "text_config.num_key_value_heads", take_count),
    built(kText, "kv_channels", kMmAll, "text_config.head_dim", take_count),
    needed(kText, "vocab_size", kMmAll, "text_config.vocab_size", take_count),
    needed(kText, "max_position_embeddings", kMmAll, "text_config.max_position_embeddings", take_count),
    needed(kText, "layernorm_epsilon", kMmAll, "text_config.rms_norm_eps", take_number),
    needed(kText, "rope_theta", kMmAll, "text_config.rope_theta", take_number),
    built(kText, "rotary_base", kMmAll, "text_config.rope_theta", take_number),
    needed(kText, "mrope_section", kMmQwen, "text_config.rope_parameters.mrope_section", take_list),
    built(kText, "rope_scaling", kMmAll, "text_config.rope_parameters", take_rope_scaling),
    built(kText, "init_method_std", kMmAll, "text_config.initializer_range", take_number),
    built(kText, "untie_embeddings_and_output_weights", kMmAll, "tie_word_embeddings", take_untied),
    built(kText, "add_qkv_bias", kMmInternvl, "true: Qwen2's text; with qk_layernorm false too: Llama's",
          take_told<kQkvBias, take_switch>),
    built(kText, "qk_layernorm", kMmInternvl, "true: Qwen3's text", take_told<kQkNorm, take_switch>),
    built(kText, "recompute_granularity", kMmAll, "--recompute-granularity", take_flag<kGranularity>),
    built(kText, "recompute_method", kMmAll, "--recompute-method", take_flag<kMethod>),
    built(kText, "recompute_num_layers", kMmAll, "--recompute-num-layers", take_flag<kLayers>),
    one_value(kText, "add_qkv_bias", kMmQwen2 | kMmQwen25, "queries, keys and values have biases; write true", is_true),
    one_value(kText, "add_qkv_bias", kMmQwen3, "queries, keys and values have no biases; write false", is_false),
    one_value(kText, "qk_layernorm", kMmQwen2 | kMmQwen25, "heads have no norms; write false", is_false),
    one_value(kText, "qk_layernorm", kMmQwen3, "heads have norms; write true", is_true),
    one_value(kText, "use_qk_norm", kMmQwen3, "heads have norms; write true", is_true),
    one_value(kText, "normalization", kMmAll, "the text has RMSNorm; write that", is_word<kRmsNorm>),
    one_value(kText, "activation_func", kMmAll, "the text has silu; write that", is_word<kSilu>),
    one_value(kText, "gated_linear_unit", kMmAll, "the text's MLP has a gate; write true", is_true),
    one_value(kText, "add_bias_linear", kMmAll, "the text's matrices have no biases; write false", is_false),
    one_value(kText, "disable_bias_linear", kMmAll, "the text's matrices have no biases; write true", is_true),
    one_value(kText, "position_embedding_type", kMmQwen, "the text has mrope; write that", is_word<kMrope>),
    one_value(kText, "position_embedding_type", kMmInternvl, "the text has rope; write that", is_word<kRope>),
    one_value(kText, "rotary_percent", kMmAll, "all dims of a head are turned; write 1", is_number<1>),
    one_value(kText, "hidden_dropout", kMmAll, kNoDropout, is_number<0>),
    one_value(kText, "attention_dropout", kMmAll, kNoDropout, is_number<0>),
    one_value(kText, "layernorm_zero_centered_gamma", kMmAll, "norms have no offset; write false", is_false),
    one_value(kText, "apply_query_key_layer_scaling", kMmAll, "scores are not scaled by layers; write false", is_false),
    one_value(kText, "reset_attention_mask", kMmAll, "packing of samples with pictures is not built; write false",
              is_false),
    one_value(kText, "context_parallel_size", kMmAll, kNoParallel, is_number<1>),
    one_value(kText, "sequence_parallel", kMmAll, kNoSequence, is_false),
    one_value(kText, "activation_offload", kMmAll,
              "activation_offload_modules of fsdp2_config.yaml does it; write false", is_false),
    no_effect(kText, "seq_length", kMmAll, "must agree with --seq-length where that is given", agree_with<kSeqLength>),
    no_effect(kText, "group_query_attention", kMmAll, "num_query_groups says it"),
    no_effect(kText, "pipeline_num_layers", kMmAll, kStages),
    no_effect(kText, "params_dtype", kMmAll, kDtypes),
    no_effect(kText, "fp16", kMmAll, "must agree with --fp16 where that is given", agree_with<kFp16>),
    no_effect(kText, "bf16", kMmAll, "must agree with --bf16 where that is given", agree_with<kBf16>),
    no_effect(kText, "parallel_output", kMmAll, "fsdp2_config.yaml says what ranks share"),
    no_effect(kText, "attention_softmax_in_fp32", kMmAll, "softmax is computed in fp32"),
    no_effect(kText, "fp16_lm_cross_entropy", kMmAll, "the loss is computed in fp32"),
    no_effect(kText, "use_fused_rotary_pos_emb", kMmAll, kTorchKernels),
    no_effect(kText, "apply_rope_fusion", kMmAll, kTorchKernels),
    no_effect(kText, "bias_activation_fusion", kMmAll, kTorchKernels),
    no_effect(kText, "bias_dropout_fusion", kMmAll, kTorchKernels),
    no_effect(kText, "masked_softmax_fusion", kMmAll, kTorchKernels),
    no_effect(kText, "memory_efficient_layer_norm", kMmAll, kTorchKernels),
    no_effect(kText, "persist_layer_norm", kMmAll, kTorchKernels),
    no_effect(kText, "attn_implementation", kMmAll, kTorchKernels),
    no_effect(kText, "attn_layout", kMmAll, kTorchKernels),
    no_effect(kText, "is_causal", kMmAll, "text always attends to what is in front"),
    no_effect(kText, "use_te", kMmAll, kTorchKernels),
    no_effect(kText, "moe_grouped_gemm", kMmAll, "these models have no experts"),
    no_effect(kText, "use_npu_fused_moe", kMmAll, "these models have no experts"),
    no_effect(kText, "initializer_factor", kMmInternvl, "init_method_std says it"),
    no_effect(kText, "use_remove_padding", kMmAll, "rows are as long as the longest of their micro-batch"),
    no_effect(kText, "variable_seq_lengths", kMmAll, "rows are as long as the longest of their micro-batch"),
    no_effect(kText, "synchronize_per_layer", kMmAll, "num_to_forward_prefetch of fsdp2_config.yaml counts"),
};

}  // namespace
}  // namespace loom::models::mm

namespace loom::models {

std::span<const MmKey> mm_model_keys() { return mm::kKeys; }

std::string_view path_of(MmSection section) {
  constexpr std::string_view kPaths[] = {"", "loss_cfg", "image_encoder.vision_encoder",
                                         "image_encoder.vision_projector", "text_decoder"};
  return kPaths[static_cast<std::size_t>(section)];
}

std::string models_text(unsigned models) {
  if (models == kMmAll) return "all";
  std::vector<std::string_view> names;
  if ((models & kMmQwen) == kMmQwen) {
    names.emplace_back("Qwen-VL");
    models &= ~kMmQwen;
  }
  if ((models & kMmQwen2) != 0) names.emplace_back("Qwen2-VL");
  if ((models & kMmQwen25) != 0) names.emplace_back("Qwen2.5-VL");
  if ((models & kMmQwen3) != 0) names.emplace_back("Qwen3-VL");
  if ((models & kMmInternvl) != 0) names.emplace_back("InternVL");
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace loom::models
