#include "engine/cli/words/model_flags.h"

#include <algorithm>
#include <fmt/format.h>
#include <variant>

#include "engine/cli/words/shape_flags.h"
#include "engine/core/error.h"
#include "models/decoder/decoder_config.h"
#include "models/hub/model_source.h"
#include "models/mm_model/mm_model.h"

namespace loom::cli {
namespace {

using models::ShapeOptions;
using Texts = std::vector<std::string>;
using Keys = std::vector<std::string_view>;

// The configuration of the language model, which has a mapping of its own in that of several modalities.
const config::Value& of_language(const config::Value& whole) {
  const config::Value* text = whole.find("text_config");
  if (text == nullptr) text = whole.find("llm_config");
  return text != nullptr && text->is_mapping() ? *text : whole;
}

const config::Value* rotary_block(const config::Value& configuration) {
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const config::Value* block = configuration.find(key);
    if (block != nullptr && block->is_mapping() && !block->items().empty()) return block;
  }
  return nullptr;
}

const config::Value* find(const config::Value* mapping, const Keys& keys) {
  if (mapping == nullptr) return nullptr;
  for (const std::string_view key : keys) {
    const config::Value* value = mapping->find(key);
    if (value != nullptr && value->number()) return value;
  }
  return nullptr;
}

// What the configuration says of a flag: "num_hidden_layers", its number, and where.
struct Said {
  std::string what;
  double number = 0;
  std::string where;
};

std::optional<Said> said_by(const config::Value* value) {
  if (value == nullptr) return std::nullopt;
  return Said{value->path(), *value->number(), value->where()};
}

using Number = std::variant<std::optional<std::int64_t> ShapeOptions::*, std::optional<double> ShapeOptions::*>;

struct NumberFlag {
  std::string_view name;
  Number member;
  Keys keys;                   // of configurations; the first that is there counts
  bool is_of_scaling = false;  // they are in the block of scaled rotary positions
};

const std::vector<NumberFlag>& number_flags() {
  using S = ShapeOptions;
  static const std::vector<NumberFlag> flags{
      {"--num-layers", &S::num_layers, {"num_hidden_layers", "n_layer"}},
      {"--hidden-size", &S::hidden_size, {"hidden_size", "n_embd"}},
      {"--ffn-hidden-size", &S::ffn_hidden_size, {"intermediate_size", "n_inner"}},
      {"--num-attention-heads", &S::num_attention_heads, {"num_attention_heads", "n_head"}},
      {"--num-query-groups", &S::num_query_groups, {"num_key_value_heads", "num_attention_heads", "n_head"}},
      {"--kv-channels", &S::kv_channels, {"head_dim"}},
      {"--norm-epsilon", &S::norm_epsilon, {"rms_norm_eps", "layer_norm_epsilon"}},
      {"--rotary-base", &S::rotary_base, {"rope_theta"}},
      {"--num-experts", &S::num_experts, {"num_experts", "num_local_experts"}},
      {"--moe-router-topk", &S::moe_router_topk, {"num_experts_per_tok"}},
      {"--moe-ffn-hidden-size", &S::moe_ffn_hidden_size, {"moe_intermediate_size"}},
      {"--rope-scaling-factor", &S::rope_scaling_factor, {"factor"}, true},
      {"--rotary-seq-len-interpolation-factor", &S::rotary_seq_len_interpolation_factor, {"factor"}, true},
      {"--original-max-position-embeddings",
       &S::original_max_position_embeddings,
       {"original_max_position_embeddings"},
       true},
      {"--low-freq-factor", &S::low_freq_factor, {"low_freq_factor"}, true},
      {"--high-freq-factor", &S::high_freq_factor, {"high_freq_factor"}, true},
      {"--beta-fast", &S::beta_fast, {"beta_fast"}, true},
      {"--beta-slow", &S::beta_slow, {"beta_slow"}, true},
      {"--rope-scaling-mscale", &S::rope_scaling_mscale, {"mscale"}, true},
      {"--rope-scaling-mscale-all-dim", &S::rope_scaling_mscale_all_dim, {"mscale_all_dim"}, true},
  };
  return flags;
}

std::optional<double> given_number(const ShapeOptions& shape, const Number& member) {
  return std::visit(
      [&](auto pointer) {
        const auto& value = shape.*pointer;
        return value ? std::optional(static_cast<double>(*value)) : std::nullopt;
      },
      member);
}

// What follows from other keys where the flag's own is not given.
std::optional<Said> derived(std::string_view flag, const config::Value& configuration) {
  if (flag == "--ffn-hidden-size") {
    const auto size = said_by(find(&configuration, {"n_embd"}));
    return size ? std::optional(Said{"4 * " + size->what, 4 * size->number, size->where}) : std::nullopt;
  }
  if (flag == "--kv-channels") {
    const auto size = said_by(find(&configuration, {"hidden_size", "n_embd"}));
    const auto heads = said_by(find(&configuration, {"num_attention_heads", "n_head"}));
    if (!size || !heads || heads->number == 0) return std::nullopt;
    return Said{fmt::format("{} / {}", size->what, heads->what), size->number / heads->number, size->where};
  }
  if (flag == "--moe-ffn-hidden-size" && configuration.find("num_local_experts") != nullptr) {
    return said_by(find(&configuration, {"intermediate_size"}));
  }
  if (flag == "--rotary-base" && configuration.find("n_embd") == nullptr) {
    const auto said = said_by(find(rotary_block(configuration), {"rope_theta"}));
    return said ? said : Said{"rope_theta", 10000, configuration.where() + " by default"};
  }
  return std::nullopt;
}

// Compares every kind of shape flag with one configuration.
class Comparison {
 public:
  Comparison(const ShapeOptions& shape, const models::ConfigReader& file)
      : shape_(shape), configuration_(of_language(file.value())), where_(file.value().where()) {
    const config::Value* type = configuration_.find("model_type");
    if (type != nullptr && type->is_scalar()) type_ = type->scalar();
  }

  void run() {
    for (const NumberFlag& flag : number_flags()) number(flag);
    rotary_type();
    traits();
    positions();
    dropout("--attention-dropout", shape_.attention_dropout, "attn_pdrop");
    dropout("--hidden-dropout", shape_.hidden_dropout, "resid_pdrop");
    vocabulary();
    layers_with_experts();
  }

  Texts differences, notes;

 private:
  template <class... Args>
  void differs(fmt::format_string<Args...> format, Args&&... args) {
    differences.push_back(fmt::format(format, std::forward<Args>(args)...));
  }

  void number(const NumberFlag& flag) {
    const auto given = given_number(shape_, flag.member);
    if (!given) return;
    const config::Value* block = rotary_block(configuration_);
    auto said = said_by(find(flag.is_of_scaling ? block : &configuration_, flag.keys));
    if (!said) said = derived(flag.name, configuration_);
    if (said && *given != said->number) {
      differs("{} is {} on the command line, and {} is {} in {}", flag.name, *given, said->what, said->number,
              said->where);
    } else if (!said && (flag.is_of_scaling ? is_scaled() : flag.name == "--num-experts")) {
      differs("{} is {} on the command line, and {} has no {}", flag.name, *given, where_, flag.keys.front());
    }
  }
  bool is_scaled() const {
    return shape_.use_rope_scaling || shape_.rope_scaling_type || shape_.rotary_seq_len_interpolation_factor;
  }

  void rotary_type() {
    if (!is_scaled()) return;
    const std::string wanted =
        shape_.rotary_seq_len_interpolation_factor ? "linear" : shape_.rope_scaling_type.value_or("llama3");
    const config::Value* block = rotary_block(configuration_);
    const config::Value* type = nullptr;
    for (const char* key : {"rope_type", "type"}) {
      if (type == nullptr && block != nullptr) type = block->find(key);
    }
    const std::string said = type == nullptr ? "default" : type->scalar();
    if (said == wanted) return;
    differs("rotary positions are scaled as {} on the command line, and as {} in {}", wanted, said,
            type == nullptr ? where_ : type->where());
  }

  // What models of some types have, and those of the others not.
  void traits() {
    trait(shape_.swiglu, "--swiglu", type_ != "gpt2");
    trait(shape_.disable_bias_linear, "--disable-bias-linear", type_ != "gpt2");
    trait(shape_.qk_layernorm, "--qk-layernorm", type_ == "qwen3" || type_ == "qwen3_moe");
    const config::Value* biased = configuration_.find("attention_bias");
    const bool has_biases = biased != nullptr && biased->boolean().value_or(false);
    trait(shape_.add_qkv_bias, "--add-qkv-bias", type_ == "qwen2" || type_ == "qwen2_moe" || has_biases);
    trait(shape_.normalization == "RMSNorm", "--normalization RMSNorm", type_ != "gpt2");
    trait(shape_.normalization == "LayerNorm", "--normalization LayerNorm", type_ == "gpt2");
    trait(shape_.use_rotary_position_embeddings, "--use-rotary-position-embeddings", type_ != "gpt2");
  }
  void trait(bool is_given, std::string_view flag, bool is_there) {
    if (!is_given || is_there || !is_known()) return;
    differs("{} is on the command line, and models of model_type {} do not have it ({})", flag, *type_, where_);
  }
  bool is_known() const {
    constexpr std::string_view kKnown[] = {"llama", "qwen2", "qwen3", "qwen3_moe", "qwen2_moe", "mixtral", "gpt2"};
    return type_ && std::ranges::find(kKnown, *type_) != std::end(kKnown);
  }

  void positions() {
    const auto& given = shape_.position_embedding_type;
    if (given)
      trait(true, "--position-embedding-type " + *given, *given == (type_ == "gpt2" ? "learned_absolute" : "rope"));
    if (type_ != "gpt2" || !shape_.max_position_embeddings) return;
    number({"--max-position-embeddings", &ShapeOptions::max_position_embeddings, {"n_positions"}});
  }

  void dropout(std::string_view flag, const std::optional<double>& given, std::string_view key) {
    if (!given || !is_known()) return;
    const config::Value* value = type_ == "gpt2" ? configuration_.find(key) : nullptr;
    const double said = type_ != "gpt2" ? 0 : value == nullptr ? 0.1 : value->number().value_or(0.1);
    if (*given == said) return;
    if (type_ == "gpt2")
      return differs("{} is {} on the command line, and {} is {} in {}", flag, *given, key, said, where_);
    differs("{} is {} on the command line, and models of model_type {} have no dropout ({}); write 0", flag, *given,
            *type_, where_);
  }

  // The configuration's rows count: Megatron's padding behind them is explained, or it is a difference.
  void vocabulary() {
    const config::Value* value = find(&configuration_, {"vocab_size"});
    if (value == nullptr) return;
    const auto rows = static_cast<std::int64_t>(*value->number());
    const auto& padded = shape_.padded_vocab_size;
    const bool fits = shape_.vocab_size == rows || padded == rows ||
                      (shape_.vocab_size && padded_vocabulary(shape_, *shape_.vocab_size) == rows);
    if (!padded && (!shape_.vocab_size || fits)) return;
    const bool is_explained =
        padded && shape_.make_vocab_size_divisible_by && padded_vocabulary(shape_, rows) == *padded;
    if (padded && *padded != rows && is_explained) {
      notes.push_back(
          fmt::format("--padded-vocab-size is {}, and vocab_size is {} in {}: trained without the {} padding rows",
                      *padded, rows, value->where(), *padded - rows));
    } else if (padded ? *padded != rows : !fits) {
      differs("{} is {} on the command line, and {} is {} in {}", padded ? "--padded-vocab-size" : "--vocab-size",
              padded ? *padded : *shape_.vocab_size, value->path(), rows, value->where());
    }
  }

  void layers_with_experts() {
    if (!shape_.moe_layer_freq && !shape_.first_k_dense_replace) return;
    const models::DecoderConfig config = models::parse_decoder_json(configuration_.json(), where_);
    if (!config.moe)
      return differs("--moe-layer-freq or --first-k-dense-replace is on the command line, and {} has no experts",
                     where_);
    const std::vector<bool> sparse = sparse_layers(shape_, config.num_hidden_layers);
    for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
      const bool said = models::is_sparse_layer(config, layer);
      if (sparse[static_cast<std::size_t>(layer)] == said) continue;
      return differs("layer {} has {}experts by --moe-layer-freq and --first-k-dense-replace, and {} in {}", layer,
                     said ? "no " : "", said ? "has them" : "none", where_);
    }
  }

  const ShapeOptions& shape_;
  const config::Value& configuration_;
  std::string where_;
  std::optional<std::string> type_;
};

}  // namespace

std::vector<std::string> check_model_flags(const models::ModelOptions& model) {
  const auto path = models::model_path(model);
  if ((!path && !model.mm_model) || model.shape == ShapeOptions{}) return {};
  const models::ConfigReader configuration =
      path ? models::ConfigReader::load(*path) : models::reader_of(models::read_mm_model(*model.mm_model));
  Comparison comparison(model.shape, configuration);
  comparison.run();
  if (comparison.differences.empty()) return comparison.notes;
  config_error("{}; the model is what its configuration says: give the same value, remove the flag, or change the file",
               fmt::join(comparison.differences, "; "));
}

}  // namespace loom::cli
