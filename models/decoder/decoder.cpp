#include "models/decoder/decoder.h"

#include <algorithm>
#include <cmath>

#include "engine/core/error.h"
#include "engine/dist/context_attention.h"
#include "engine/dist/tensor_slot.h"
#include "engine/nn/batch_rows.h"
#include "engine/nn/layers.h"
#include "engine/tensor/ops.h"
#include "models/decoder/decoder_families.h"
#include "models/decoder/decoder_parts.h"
#include "models/hub/model_hub.h"
#include "sharding/pipeline/pipeline_parts.h"
#include "sharding/tensor/tensor_plan.h"

namespace loom::models {

std::shared_ptr<nn::Module> build_decoder(const DecoderConfig& config) {
  return config.family == DecoderFamily::kGpt2 ? make_gpt2(config) : make_rotary_decoder(config);
}

void register_decoders(ModelHub& hub) {
  for (const DecoderFamilyEntry& family : decoder_families()) {
    if (family.architecture.empty()) continue;
    hub.add(
        {std::string(family.architecture), std::string(family.model_type)},
        [](const ConfigReader& config) { return build_decoder(read_decoder_config(config)); },
        [](const ConfigReader& config) {
          const DecoderConfig read = read_decoder_config(config);
          return ModelFacts{read.vocab_size, longest_sequence(read), to_json(read)};
        });
  }
}

std::string class_name(const DecoderConfig& config, std::string_view part) {
  const DecoderFamilyEntry& entry = entry_of(config.family);
  if (part == "Model") return std::string(entry.class_prefix).append(entry.model_class);
  if (part == "MLP" && !entry.mlp_prefix.empty()) return std::string(entry.mlp_prefix).append(part);
  return std::string(entry.class_prefix).append(part);
}

std::int64_t check_length(const Shape& input, int dims, const DecoderConfig& config) {
  check_model(input.ndim() == dims, "input {}, expected [batch, sequence{}]", to_string(input),
              dims == 2 ? "" : ", hidden");
  const std::int64_t length = input[1];
  if (length > longest_sequence(config)) {
    config_error("a sequence of {} tokens, but the model's {}; use shorter sequences", length,
                 longest_sequence_text(config));
  }
  return length;
}

Tensor split_heads(const Tensor& x, std::int64_t heads) {
  const Shape& s = x.shape();
  return ops::reshape(x, {s[0], s[1], heads, s[2] / heads});
}

Tensor join_heads(const Tensor& x) {
  const Shape& s = x.shape();
  return ops::reshape(x, {s[0], s[1], s[2] * s[3]});
}

ops::SegmentEnds segment_ends(const nn::Value& actual_seq_len) {
  if (actual_seq_len.is_none()) return nullptr;
  auto ends = std::make_shared<std::vector<std::int64_t>>();
  for (const nn::Value& end : actual_seq_len.list()) ends->push_back(end.number());
  return ends;
}

const nn::Value& optional_argument(const nn::Args& args, std::size_t i) {
  static const nn::Value none;
  return i < args.positional.size() ? args.positional[i] : none;
}

namespace {

// For a call with hidden states or ids as the first argument, or with inputs_embeds.
std::int64_t sequence_length(const nn::Args& args) {
  const nn::Value& embeddings = args.find("inputs_embeds");
  return (embeddings.is_none() ? args.tensor(0) : embeddings.tensor()).shape()[1];
}

// Ends of segments, counted from the first position that is kept.
nn::Value ends_within(const nn::ValueList& ends, std::int64_t first, std::int64_t count) {
  nn::ValueList kept;
  for (const nn::Value& end : ends) {
    const std::int64_t at = end.number() - first;
    if (at > 0 && at <= count) kept.emplace_back(at);
  }
  return kept;
}

// Of [B,S], or of [3,B,S].
Tensor rows_of_positions(const Tensor& positions, std::int64_t begin, std::int64_t rows) {
  const Shape& s = positions.shape();
  if (s.ndim() == 2) return positions.rows(begin, rows);
  const Shape kept{s[0], rows, s[2]};
  if (positions.raw() == nullptr) return Tensor::empty(kept, positions.dtype());
  const Tensor part = Tensor::host(kept, DType::kI32, "position ids");
  for (std::int64_t axis = 0; axis < s[0]; ++axis) {
    std::copy_n(positions.data<std::int32_t>() + (axis * s[1] + begin) * s[2], rows * s[2],
                part.data<std::int32_t>() + axis * rows * s[2]);
  }
  return part;
}

void keep_rows(nn::Args& args, std::int64_t begin, std::int64_t rows) {
  const std::int64_t length = sequence_length(args);
  const auto keep_ends = [&](nn::Value& ends) {
    if (!ends.is_none()) ends = ends_within(ends.list(), begin * length, rows * length);
  };
  for (std::size_t i = 1; i < args.positional.size(); ++i) {
    nn::Value& value = args.positional[i];
    if (!value.is_tensor()) {
      keep_ends(value);
    } else if (value.tensor().shape().ndim() == 3) {  // all rows share tables [S,D]
      value = value.tensor().rows(begin, rows);
    }
  }
  for (auto& [name, value] : args.named) {
    if (name == "position_ids") value = rows_of_positions(value.tensor(), begin, rows);
    if (name == "actual_seq_len") keep_ends(value);
  }
}

}  // namespace

void attach_batch_rows(nn::Module& module) { module.attach(std::make_shared<nn::BatchRows>(nn::BatchRows{keep_rows})); }

void attach_context(nn::Module& module, std::int64_t heads, std::int64_t kv_heads, std::int64_t head_dim) {
  module.attach(std::make_shared<dist::ContextSlot>(
      dist::ContextSlot{.heads = heads, .kv_heads = kv_heads, .head_dim = head_dim}));
}

void attach_tensor(nn::Module& module) { module.attach(std::make_shared<dist::TensorSlot>()); }

void attach_tensor_plan(nn::Module& causal_model, const DecoderConfig& config) {
  sharding::TensorPlan plan{.embedding = "model.embed_tokens", .output = "lm_head"};
  const std::string layer = "model.layers.{*}.";
  if (config.latent_attention) {
    plan.colwise = {layer + "self_attn." + (config.latent_attention->q_lora_rank == 0 ? "q_proj" : "q_b_proj"),
                    layer + "self_attn.kv_b_proj"};
  } else {
    plan.colwise = {layer + "self_attn.q_proj", layer + "self_attn.k_proj", layer + "self_attn.v_proj"};
  }
  plan.rowwise = {layer + "self_attn.o_proj"};
  for (std::int64_t i = 0; i < config.num_hidden_layers; ++i) {
    const std::string mlp = fmt::format("model.layers.{}.mlp", i);
    if (is_sparse_layer(config, i)) {
      plan.tokens.push_back(mlp);
      continue;
    }
    plan.colwise.push_back(mlp + ".gate_proj");
    plan.colwise.push_back(mlp + ".up_proj");
    plan.rowwise.push_back(mlp + ".down_proj");
  }
  causal_model.attach(std::make_shared<sharding::TensorPlan>(std::move(plan)));
  causal_model.attach(std::make_shared<sharding::PipelineParts>(
      sharding::PipelineParts{{"model.embed_tokens"}, "model.layers", {"model.norm", "lm_head"}}));
  attach_tensor(causal_model);
}

double attention_scale(const DecoderConfig& config) {
  const double scale = 1.0 / std::sqrt(static_cast<double>(config.head_dim));
  const RotaryScaling& rotary = config.rope_scaling;
  if (!config.latent_attention || rotary.type == RopeType::kDefault || rotary.mscale_all_dim == 0) return scale;
  const double grown = rotary.factor <= 1 ? 1 : 0.1 * rotary.mscale_all_dim * std::log(rotary.factor) + 1;
  return scale * grown * grown;
}

nn::Value logits_or_loss(nn::Module& lm_head, const nn::Args& args, const Tensor& hidden) {
  const nn::Value& targets = args.find("targets");
  if (targets.is_none()) return lm_head(hidden);
  const nn::Value& chunk = args.find("loss_chunk_size");
  return lm_head(hidden, targets, chunk.is_none() ? nn::Value(std::int64_t{0}) : chunk);
}

std::shared_ptr<nn::Module> make_lm_head(const DecoderConfig& config, const nn::ParamSlot& embedding) {
  if (config.tie_word_embeddings) return std::make_shared<nn::TiedLinear>(embedding);
  return std::make_shared<nn::Linear>(config.hidden_size, config.vocab_size, false, config.initializer_range);
}

}  // namespace loom::models
