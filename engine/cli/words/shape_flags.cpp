#include "engine/cli/words/shape_flags.h"

#include <algorithm>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/config/document.h"
#include "engine/core/error.h"
#include "engine/core/parse_number.h"
#include "engine/core/shown_text.h"
#include "engine/job/foreign.h"
#include "engine/job/key.h"
#include "engine/train/parallel_options.h"
#include "sharding/config/fsdp2_config.h"

namespace loom::cli {
namespace {

using Json = nlohmann::ordered_json;
using models::ShapeOptions;

enum class Family { kLlama, kQwen2, kQwen3, kQwen3Moe, kGpt2 };

// Of --short-factor and --long-factor: numbers with commas between them.
Json numbers_of(std::string_view flag, const std::string& text) {
  Json numbers = Json::array();
  for (std::string_view rest = text;;) {
    const std::string_view word = rest.substr(0, rest.find(','));
    const auto number = parse_number<double>(word);
    if (!number) config_error("{} has {}; write numbers with commas between them", flag, shown_text(word));
    numbers.push_back(*number);
    if (word.size() == rest.size()) return numbers;
    rest.remove_prefix(word.size() + 1);
  }
}

// A Python list of zeros and ones: "[1,0]", "[0]*2+[1]*3", also in parentheses. Empty if it is not.
std::optional<std::vector<bool>> list_of_layers(std::string text, std::int64_t most) {
  std::erase_if(text, [](char c) { return c == ' ' || c == '(' || c == ')'; });
  std::vector<bool> layers;
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view term = rest.substr(0, rest.find('+'));
    rest.remove_prefix(std::min(rest.size(), term.size() + 1));
    const std::size_t close = term.find(']');
    if (!term.starts_with('[') || close == std::string_view::npos) return std::nullopt;
    std::vector<bool> items;
    for (std::string_view inner = term.substr(1, close - 1); !inner.empty();) {
      const std::string_view item = inner.substr(0, inner.find(','));
      inner.remove_prefix(std::min(inner.size(), item.size() + 1));
      if (item != "0" && item != "1") return std::nullopt;
      items.push_back(item == "1");
    }
    const std::string_view times = term.substr(close + 1);
    const auto count = times.empty()            ? std::optional<std::int64_t>(1)
                       : times.starts_with('*') ? parse_number<std::int64_t>(times.substr(1))
                                                : std::nullopt;
    if (!count || *count < 0 || *count > most) return std::nullopt;
    for (std::int64_t i = 0; i < *count && std::ssize(layers) <= most; ++i) {
      layers.insert(layers.end(), items.begin(), items.end());
    }
  }
  return layers;
}

// Makes the configuration, and collects what is wrong with the flags.
class ShapeConfiguration {
 public:
  explicit ShapeConfiguration(const job::Job& job) : job_(job), shape_(job.model.shape) {}

  std::string text() {
    const Family family = family_of();
    Json json = family == Family::kGpt2 ? gpt2() : rotary_decoder(family);
    json["vocab_size"] = vocabulary();
    json["initializer_range"] = shape_.init_method_std.value_or(0.02);
    json["tie_word_embeddings"] = !job_.model.untie_embeddings_and_output_weights;
    if (!problems_.empty()) {
      config_error("the model's flags: {}; or give --model-config FILE", fmt::join(problems_, "; "));
    }
    return json.dump(2) + "\n";
  }

 private:
  // 0 where it is missing.
  std::int64_t required(std::string_view flag, const std::optional<std::int64_t>& value) {
    if (!value) problem("{} is not given", flag);
    return value.value_or(0);
  }

  Family family_of() {
    const std::string norm = shape_.normalization.value_or("LayerNorm");
    const std::string positions =
        shape_.use_rotary_position_embeddings ? "rope" : shape_.position_embedding_type.value_or("learned_absolute");
    // The flags that all rotary families have: as it is written, whether it is there, and what it has to be.
    struct Trait {
      std::string written;
      bool is_there;
      std::string_view wanted;
    };
    const Trait traits[] = {
        {"--normalization " + norm, norm == "RMSNorm", "--normalization RMSNorm"},
        {"--position-embedding-type " + positions, positions == "rope", "--position-embedding-type rope"},
        {"--swiglu", shape_.swiglu, "--swiglu"},
        {"--disable-bias-linear", shape_.disable_bias_linear, "--disable-bias-linear"}};
    std::vector<std::string> given, missing;
    for (const Trait& trait : traits) {
      if (trait.is_there) given.push_back(trait.written);
      if (!trait.is_there) missing.emplace_back(trait.wanted);
    }
    if (shape_.qk_layernorm) given.emplace_back("--qk-layernorm");
    if (shape_.add_qkv_bias) given.emplace_back("--add-qkv-bias");
    if (shape_.num_experts) given.push_back(fmt::format("--num-experts {}", *shape_.num_experts));
    if (given.empty() && positions == "learned_absolute") return Family::kGpt2;
    if (positions != "rope" && positions != "learned_absolute") given.push_back(traits[1].written);
    if (!missing.empty()) {
      problem("{} fit{} no family: Llama, Qwen2, Qwen3 and Qwen3-MoE also have {}, and GPT-2 has none of these flags",
              fmt::join(given, ", "), given.size() == 1 ? "s" : "", fmt::join(missing, ", "));
    }
    if (shape_.qk_layernorm && shape_.add_qkv_bias) {
      problem("--qk-layernorm and --add-qkv-bias are of two families; keep one");
    }
    if (shape_.num_experts && !shape_.qk_layernorm) {
      problem("--num-experts fits Qwen3-MoE alone, which also has --qk-layernorm");
    }
    if (shape_.num_experts) return Family::kQwen3Moe;
    return shape_.qk_layernorm ? Family::kQwen3 : shape_.add_qkv_bias ? Family::kQwen2 : Family::kLlama;
  }

  Json rotary_decoder(Family family) {
    const std::int64_t hidden = required("--hidden-size", shape_.hidden_size);
    const std::int64_t heads = required("--num-attention-heads", shape_.num_attention_heads);
    Json json;
    constexpr const char* kTypes[] = {"llama", "qwen2", "qwen3", "qwen3_moe"};
    constexpr const char* kClasses[] = {"LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM",
                                        "Qwen3MoeForCausalLM"};
    json["architectures"] = {kClasses[static_cast<int>(family)]};
    json["model_type"] = kTypes[static_cast<int>(family)];
    json["hidden_size"] = hidden;
    json["intermediate_size"] = shape_.ffn_hidden_size.value_or(hidden * 8 / 3 / 64 * 64);
    json["num_hidden_layers"] = required("--num-layers", shape_.num_layers);
    json["num_attention_heads"] = heads;
    json["num_key_value_heads"] = shape_.num_query_groups.value_or(heads);
    const std::int64_t channels = shape_.kv_channels.value_or(heads > 0 ? hidden / heads : 1);
    const bool has_key = family == Family::kQwen3 || family == Family::kQwen3Moe;
    if (has_key || channels * heads != hidden) json["head_dim"] = channels;
    json["max_position_embeddings"] = shape_.max_position_embeddings.value_or(job_.data.seq_length);
    json["rms_norm_eps"] = shape_.norm_epsilon.value_or(1e-5);
    json["rope_theta"] = shape_.rotary_base.value_or(10000);
    if (Json scaling = rope_scaling(); !scaling.empty()) json["rope_scaling"] = std::move(scaling);
    if (family == Family::kQwen3Moe) experts(json);
    no_dropout("--attention-dropout", shape_.attention_dropout);
    no_dropout("--hidden-dropout", shape_.hidden_dropout);
    return json;
  }
  void no_dropout(std::string_view flag, const std::optional<double>& dropout) {
    if (dropout == 0) return;
    problem("{} is {}, and this family has no dropout; write 0", flag,
            dropout ? fmt::to_string(*dropout) : "0.1 by default");
  }

  Json rope_scaling() {
    Json block;
    const std::string type = shape_.rope_scaling_type.value_or("llama3");
    if (shape_.rotary_seq_len_interpolation_factor) {
      if (is_scaled())
        problem("--rotary-seq-len-interpolation-factor and --rope-scaling-type are two scalings; keep one");
      return {{"rope_type", "linear"}, {"factor", *shape_.rotary_seq_len_interpolation_factor}};
    }
    if (!is_scaled()) return block;
    block["rope_type"] = type;
    block["factor"] = shape_.rope_scaling_factor.value_or(8);
    block["original_max_position_embeddings"] = shape_.original_max_position_embeddings.value_or(8192);
    if (type == "llama3") {
      block["low_freq_factor"] = shape_.low_freq_factor.value_or(1);
      block["high_freq_factor"] = shape_.high_freq_factor.value_or(4);
    } else if (type == "yarn") {
      block["beta_fast"] = shape_.beta_fast.value_or(32);
      block["beta_slow"] = shape_.beta_slow.value_or(1);
      block["mscale"] = shape_.rope_scaling_mscale.value_or(1);
      block["mscale_all_dim"] = shape_.rope_scaling_mscale_all_dim.value_or(0);
    } else {
      block["short_factor"] = factors("--short-factor", shape_.short_factor);
      block["long_factor"] = factors("--long-factor", shape_.long_factor);
    }
    return block;
  }
  bool is_scaled() const { return shape_.use_rope_scaling || shape_.rope_scaling_type; }
  Json factors(std::string_view flag, const std::optional<std::string>& text) {
    if (text) return numbers_of(flag, *text);
    problem("{} is not given, and --rope-scaling-type longrope needs it", flag);
    return Json::array();
  }

  void experts(Json& json) {
    json["num_experts"] = *shape_.num_experts;
    json["num_experts_per_tok"] = shape_.moe_router_topk.value_or(2);
    json["moe_intermediate_size"] = shape_.moe_ffn_hidden_size.value_or(json["intermediate_size"].get<std::int64_t>());
    json["norm_topk_prob"] = !shape_.moe_router_pre_softmax || shape_.norm_topk_prob;
    json["decoder_sparse_step"] = 1;
    const std::vector<bool> sparse = sparse_layers(shape_, shape_.num_layers.value_or(1));
    Json dense = Json::array();
    for (std::size_t i = 0; i < sparse.size(); ++i) {
      if (!sparse[i]) dense.push_back(i);
    }
    json["mlp_only_layers"] = std::move(dense);
    json["router_aux_loss_coef"] = 0.0;
  }

  Json gpt2() {
    const std::int64_t hidden = required("--hidden-size", shape_.hidden_size);
    const std::int64_t heads = required("--num-attention-heads", shape_.num_attention_heads);
    Json json;
    json["architectures"] = {"GPT2LMHeadModel"};
    json["model_type"] = "gpt2";
    json["n_embd"] = hidden;
    json["n_inner"] = shape_.ffn_hidden_size.value_or(4 * hidden);
    json["n_layer"] = required("--num-layers", shape_.num_layers);
    json["n_head"] = heads;
    json["n_positions"] = shape_.max_position_embeddings.value_or(job_.data.seq_length);
    json["layer_norm_epsilon"] = shape_.norm_epsilon.value_or(1e-5);
    json["attn_pdrop"] = shape_.attention_dropout.value_or(0.1);
    json["embd_pdrop"] = json["resid_pdrop"] = shape_.hidden_dropout.value_or(0.1);
    if (heads > 0 && shape_.kv_channels.value_or(hidden / heads) != hidden / heads) {
      problem("--kv-channels is {}, and GPT-2 has --hidden-size / --num-attention-heads, {}; remove it",
              *shape_.kv_channels, hidden / heads);
    }
    if (shape_.num_query_groups.value_or(heads) != heads) {
      problem("--num-query-groups is {}, and GPT-2 has one group a head; remove it", *shape_.num_query_groups);
    }
    if (is_scaled() || shape_.rotary_seq_len_interpolation_factor) {
      problem("scaled rotary positions are given, and GPT-2 has learned ones; write --position-embedding-type rope");
    }
    return json;
  }

  std::int64_t vocabulary() {
    if (shape_.padded_vocab_size) return *shape_.padded_vocab_size;
    std::optional<std::int64_t> size = shape_.vocab_size;
    if (!size && shape_.vocab_file) size = entries_of(shape_.vocab_file->string());
    return padded_vocabulary(shape_, required("--vocab-size", size));
  }
  // Of a vocab.json: a mapping of tokens to ids.
  static std::int64_t entries_of(const std::string& file) {
    const config::Value tokens = config::parse_json(config::read_text(file, "a vocab.json"), file);
    return static_cast<std::int64_t>(tokens.items().size());
  }

  template <class... Args>
  void problem(fmt::format_string<Args...> format, Args&&... args) {
    problems_.push_back(fmt::format(format, std::forward<Args>(args)...));
  }

  const job::Job& job_;
  const ShapeOptions& shape_;
  std::vector<std::string> problems_;
};

// Not compared with a configuration: they change no shape, or the configuration alone says them.
bool is_compared(const job::Key& key, const ShapeOptions& shape) {
  constexpr std::string_view kNotCompared[] = {"--init-method-std", "--vocab-file", "--group-query-attention",
                                               "--norm-topk-prob", "--moe-router-pre-softmax"};
  if (key.name() == "--max-position-embeddings") return shape.position_embedding_type == "learned_absolute";
  return std::ranges::find(kNotCompared, key.name()) == std::end(kNotCompared);
}

bool is_shape(const job::Key& key) { return key.hidden_in_users_programs; }

std::string as_flag(const job::Key& key, const job::Job& job) {
  return job::as_written(key, fmt::format("{}", fmt::join(job::words_of(key, key.get(job)), " ")));
}

}  // namespace

std::int64_t padded_vocabulary(const ShapeOptions& shape, std::int64_t size) {
  const std::int64_t multiple = shape.make_vocab_size_divisible_by.value_or(128);
  return (size + multiple - 1) / multiple * multiple;
}

std::vector<bool> sparse_layers(const ShapeOptions& shape, std::int64_t layers) {
  const std::string text = shape.moe_layer_freq.value_or("1");
  std::vector<bool> sparse;
  if (const auto every = parse_number<std::int64_t>(text); every && *every > 0) {
    for (std::int64_t i = 0; i < layers; ++i) sparse.push_back(i % *every == 0);
  } else if (const auto list = list_of_layers(text, layers)) {
    sparse = *list;
  } else {
    config_error("--moe-layer-freq is {}; write a whole number, or a list with 0 or 1 per layer, as [0]*1+[1]*23",
                 shown_text(text));
  }
  if (std::ssize(sparse) != layers) {
    config_error("--moe-layer-freq has {} layers, and the model {}; write one number per layer", sparse.size(), layers);
  }
  const std::int64_t dense = std::min(shape.first_k_dense_replace.value_or(0), layers);
  std::fill_n(sparse.begin(), dense, false);
  return sparse;
}

void settle_shape(job::Job& job, bool users_program) {
  const bool has_path = job.model.model_config || job.model.init_from_hf_path || job.model.mm_model;
  const ShapeOptions& shape = job.model.shape;
  const bool makes_model = shape.num_layers || shape.hidden_size || shape.num_attention_heads;
  if (!has_path && !users_program && makes_model) {
    job.model.made_config = ShapeConfiguration(job).text();
    return;
  }
  const job::Job usual;
  for (const job::Key& key : job::keys()) {
    if (!is_shape(key) || key.get(job) == key.get(usual)) continue;
    if (!has_path || !is_compared(key, shape)) job.written.without_effect.push_back(as_flag(key, job));
  }
}

void settle_replicas(job::Job& job, bool several_ranks) {
  const bool fp16 = job.optimizer.fp16, bf16 = job.parallel.bf16;
  const bool is_of_megatron = job.model.made_config || job.model.mm_model;
  if (!is_of_megatron || job.parallel.use_torch_fsdp2 || job.parallel.fsdp2_config_path) return;
  if (!several_ranks && !fp16 && !bf16) return;
  sharding::Fsdp2Config config;
  config.file_name = train::sharding_file(job.parallel);
  const config::SourceMark mark{config.file_name};
  config.places.emplace("sharding_size", config::Place{mark, mark});
  std::string said = "sharding_size: 1";
  if (fp16 || bf16) {
    config.param_dtype = fp16 ? DType::kF16 : DType::kBF16;
    said += fmt::format(", param_dtype: {}", name(*config.param_dtype));
  }
  if (bf16) {  // Megatron reduces in fp32 with --bf16
    config.reduce_dtype = DType::kF32;
    said += ", reduce_dtype: fp32";
  }
  job.parallel.use_torch_fsdp2 = true;
  job.parallel.fsdp2_config = std::make_shared<const sharding::Fsdp2Config>(std::move(config));
  job.written.told.push_back(
      fmt::format("no --fsdp2-config-path: every rank has all parameters, as with Megatron's DDP ({})", said));
}

}  // namespace loom::cli
