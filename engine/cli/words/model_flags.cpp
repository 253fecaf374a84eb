#include "engine/cli/words/model_flags.h"

#include <fmt/format.h>

#include "engine/cli/words/flags.h"
#include "engine/core/error.h"
#include "engine/core/parse_number.h"
#include "engine/core/shown_text.h"
#include "models/hub/model_source.h"

namespace loom::cli {
namespace {

struct ModelFlag {
  std::string_view name;
  std::vector<std::string_view> keys;  // of configurations; the first that is there counts
};

const std::vector<ModelFlag>& model_flags() {
  static const std::vector<ModelFlag> flags{
      {"--num-layers", {"num_hidden_layers", "n_layer"}},
      {"--hidden-size", {"hidden_size", "n_embd"}},
      {"--ffn-hidden-size", {"intermediate_size", "n_inner"}},
      {"--num-attention-heads", {"num_attention_heads", "n_head"}},
      {"--num-query-groups", {"num_key_value_heads", "num_attention_heads", "n_head"}},
      {"--kv-channels", {"head_dim"}},
      {"--vocab-size", {"vocab_size"}},
      {"--padded-vocab-size", {"vocab_size"}},
      {"--rotary-base", {"rope_theta"}},
      {"--norm-epsilon", {"rms_norm_eps", "layer_norm_epsilon"}},
  };
  return flags;
}

// The configuration of the language model, which has a mapping of its own in that of several modalities.
const config::Value& of_language(const config::Value& whole) {
  const config::Value* text = whole.find("text_config");
  return text != nullptr && text->is_mapping() ? *text : whole;
}

const config::Value* find(const config::Value& configuration, const std::vector<std::string_view>& keys) {
  for (const std::string_view key : keys) {
    const config::Value* value = configuration.find(key);
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

// What follows from other keys where the flag's own is not given.
std::optional<Said> derived(std::string_view flag, const config::Value& configuration) {
  if (flag == "--ffn-hidden-size") {
    const auto size = said_by(find(configuration, {"n_embd"}));
    return size ? std::optional(Said{"4 * " + size->what, 4 * size->number, size->where}) : std::nullopt;
  }
  if (flag == "--kv-channels") {
    const auto size = said_by(find(configuration, {"hidden_size", "n_embd"}));
    const auto heads = said_by(find(configuration, {"num_attention_heads", "n_head"}));
    if (!size || !heads || heads->number == 0) return std::nullopt;
    return Said{fmt::format("{} / {}", size->what, heads->what), size->number / heads->number, size->where};
  }
  if (const config::Value* rope = configuration.find("rope_parameters"); rope != nullptr && flag == "--rotary-base") {
    return said_by(find(*rope, {"rope_theta"}));
  }
  return std::nullopt;
}

// Empty where both say the same.
std::string difference(const std::string& flag, const std::string& word, const config::Value& configuration) {
  const auto known = std::ranges::find(model_flags(), flag, &ModelFlag::name);
  auto said = known == model_flags().end() ? std::nullopt : said_by(find(configuration, known->keys));
  if (!said) said = derived(flag, configuration);
  if (!said || parse_number<double>(word) == said->number) return {};
  return fmt::format("{} is {} on the command line, and {} is {} in {}", flag, shown_text(word), said->what,
                     said->number, said->where);
}

}  // namespace

void check_model_flags(const models::ModelOptions& model_options, const job::WrittenFlags& written) {
  const auto path = models::model_path(model_options);
  if (written.model_flags.empty() || !path) return;
  const models::ConfigReader configuration = models::ConfigReader::load(*path);
  std::vector<std::string> differences;
  for (const auto& [flag, word] : written.model_flags) {
    std::string text = difference(flag, word, of_language(configuration.value()));
    if (!text.empty()) differences.push_back(std::move(text));
  }
  if (differences.empty()) return;
  config_error("{}; the model is what its configuration says: give the same value, remove the flag, or change the file",
               fmt::join(differences, "; "));
}

}  // namespace loom::cli
