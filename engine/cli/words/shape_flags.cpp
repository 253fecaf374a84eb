#include "engine/cli/words/shape_flags.h"

#include <algorithm>
#include <fmt/format.h>
#include <limits>
#include <nlohmann/json.hpp>
#include <tuple>

#include "engine/config/document.h"
#include "engine/core/error.h"
#include "engine/core/parse_number.h"
#include "engine/core/shown_text.h"
#include "engine/job/foreign.h"

namespace loom::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kRequired[] = {"--num-layers", "--hidden-size", "--num-attention-heads"};
constexpr std::int64_t kMost = std::int64_t{1} << 40;

enum class Family { kLlama, kQwen2, kQwen3, kGpt2 };

// Reads shape flags, and collects what is wrong with them.
class ShapeFlags {
 public:
  explicit ShapeFlags(job::Job& job) : job_(job) {}

  std::string configuration() {
    const Family family = family_of();
    Json json = family == Family::kGpt2 ? gpt2() : decoder(family);
    json["vocab_size"] = vocabulary();
    json["initializer_range"] = number("--init-method-std", 0.02);
    json["tie_word_embeddings"] = !job_.model.untie_embeddings_and_output_weights;
    if (!problems_.empty()) {
      config_error("the model's flags: {}; or give --model-config FILE", fmt::join(problems_, "; "));
    }
    return json.dump(2) + "\n";
  }

 private:
  // The flag's value, empty for a toggle.
  std::optional<std::string> take(std::string_view flag) {
    job::WrittenFlags& written = job_.written;
    const auto is_flag = [&](const auto& pair) { return pair.first == flag; };
    const auto found = std::ranges::find_if(written.foreign, is_flag);
    if (found != written.foreign.end()) {
      written.shape_flags.push_back(std::move(*found));
      written.foreign.erase(found);
    }
    const auto taken = std::ranges::find_if(written.shape_flags, is_flag);
    return taken == written.shape_flags.end() ? std::nullopt : std::optional(taken->second);
  }
  bool has(std::string_view flag) { return take(flag).has_value(); }

  // 0 where the flag is wrong or, being required, missing.
  std::int64_t whole(std::string_view flag, std::optional<std::int64_t> usual = std::nullopt) {
    const auto word = take(flag);
    if (!word && usual) return *usual;
    if (!word) {
      problem("{} is not given", flag);
      return 0;
    }
    const auto value = parse_number<std::int64_t>(*word);
    if (value && *value > 0 && *value < kMost) return *value;
    problem("{} is {}; use a whole number of at least 1", flag, shown_text(*word));
    return 0;
  }
  double number(std::string_view flag, double usual) {
    const auto word = take(flag);
    const auto value = word ? parse_number<double>(*word) : usual;
    if (value && *value >= 0 && *value <= std::numeric_limits<float>::max()) return *value;
    problem("{} is {}; use a number of at least 0", flag, shown_text(*word));
    return 0;
  }

  Family family_of() {
    const std::string norm = take("--normalization").value_or("LayerNorm");
    std::string positions = take("--position-embedding-type").value_or("learned_absolute");
    if (has("--use-rotary-position-embeddings")) positions = "rope";
    has("--group-query-attention");
    const bool normed_heads = has("--qk-layernorm"), head_biases = has("--add-qkv-bias");
    // Of each flag of the rotary families: as it is written, whether it is there, and what it has to be.
    const std::tuple<std::string, bool, std::string_view> flags[] = {
        {fmt::format("--normalization {}", norm), norm == "RMSNorm", "--normalization RMSNorm"},
        {fmt::format("--position-embedding-type {}", positions), positions == "rope", "--position-embedding-type rope"},
        {"--swiglu", has("--swiglu"), "--swiglu"},
        {"--disable-bias-linear", has("--disable-bias-linear"), "--disable-bias-linear"}};
    std::vector<std::string> given, missing;
    for (const auto& [written, is_there, wanted] : flags) {
      if (is_there) given.push_back(written);
      if (!is_there) missing.emplace_back(wanted);
    }
    if (normed_heads) given.emplace_back("--qk-layernorm");
    if (head_biases) given.emplace_back("--add-qkv-bias");
    if (given.empty() && norm == "LayerNorm" && positions == "learned_absolute") return Family::kGpt2;
    if (norm != "RMSNorm" && norm != "LayerNorm") given.push_back(std::get<0>(flags[0]));
    if (positions != "rope" && positions != "learned_absolute") given.push_back(std::get<0>(flags[1]));
    if (!missing.empty()) {
      problem("{} fit{} no family: Llama, Qwen2 and Qwen3 also have {}, and GPT-2 has none of these flags",
              shown_text(fmt::format("{}", fmt::join(given, ", "))), given.size() == 1 ? "s" : "",
              fmt::join(missing, ", "));
    }
    if (normed_heads && head_biases) problem("--qk-layernorm and --add-qkv-bias are of two families; keep one");
    return normed_heads ? Family::kQwen3 : head_biases ? Family::kQwen2 : Family::kLlama;
  }

  Json decoder(Family family) {
    const std::int64_t hidden = whole("--hidden-size"), heads = whole("--num-attention-heads");
    Json json;
    constexpr const char* kTypes[] = {"llama", "qwen2", "qwen3"};
    constexpr const char* kClasses[] = {"LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"};
    json["architectures"] = {kClasses[static_cast<int>(family)]};
    json["model_type"] = kTypes[static_cast<int>(family)];
    json["hidden_size"] = hidden;
    json["intermediate_size"] = whole("--ffn-hidden-size", hidden * 8 / 3 / 64 * 64);
    json["num_hidden_layers"] = whole("--num-layers");
    json["num_attention_heads"] = heads;
    json["num_key_value_heads"] = whole("--num-query-groups", heads);
    const std::int64_t channels = whole("--kv-channels", heads > 0 ? hidden / heads : 1);
    if (family == Family::kQwen3 || channels * heads != hidden) json["head_dim"] = channels;
    json["max_position_embeddings"] = whole("--max-position-embeddings", job_.data.seq_length);
    json["rms_norm_eps"] = number("--norm-epsilon", 1e-5);
    json["rope_theta"] = number("--rotary-base", 10000);
    for (const char* flag : {"--attention-dropout", "--hidden-dropout"}) {
      if (number(flag, 0.1) == 0) continue;
      problem("{} is {}, and this family has no dropout; write 0", flag, take(flag).value_or("0.1 by default"));
    }
    return json;
  }

  Json gpt2() {
    const std::int64_t hidden = whole("--hidden-size"), heads = whole("--num-attention-heads");
    Json json;
    json["architectures"] = {"GPT2LMHeadModel"};
    json["model_type"] = "gpt2";
    json["n_embd"] = hidden;
    json["n_inner"] = whole("--ffn-hidden-size", 4 * hidden);
    json["n_layer"] = whole("--num-layers");
    json["n_head"] = heads;
    json["n_positions"] = whole("--max-position-embeddings", job_.data.seq_length);
    json["layer_norm_epsilon"] = number("--norm-epsilon", 1e-5);
    json["attn_pdrop"] = number("--attention-dropout", 0.1);
    json["embd_pdrop"] = json["resid_pdrop"] = number("--hidden-dropout", 0.1);
    if (heads > 0 && whole("--kv-channels", hidden / heads) != hidden / heads) {
      problem("--kv-channels is {}, and GPT-2 has --hidden-size / --num-attention-heads, {}; remove it",
              take("--kv-channels").value_or(""), hidden / heads);
    }
    if (whole("--num-query-groups", heads) != heads) {
      problem("--num-query-groups is {}, and GPT-2 has one group a head; remove it",
              take("--num-query-groups").value_or(""));
    }
    return json;
  }

  std::int64_t vocabulary() {
    if (has("--padded-vocab-size")) {
      has("--vocab-size"), has("--make-vocab-size-divisible-by");
      return whole("--padded-vocab-size");
    }
    const std::int64_t divisor = whole("--make-vocab-size-divisible-by", 128);
    const auto file = take("--vocab-file");
    const std::int64_t size = !has("--vocab-size") && file ? entries_of(*file) : whole("--vocab-size");
    return divisor == 0 ? 0 : (size + divisor - 1) / divisor * divisor;
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

  job::Job& job_;
  std::vector<std::string> problems_;
};

}  // namespace

void settle_shape(job::Job& job) {
  if (job.model.model_config || job.model.init_from_hf_path) return;
  const auto is_given = [&](std::string_view flag) { return job::foreign_value(job.written, flag).has_value(); };
  if (std::ranges::none_of(kRequired, is_given)) return;
  job.model.shape = ShapeFlags(job).configuration();
}

}  // namespace loom::cli
