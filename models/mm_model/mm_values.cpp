#include "models/mm_model/mm_values.h"

#include <cmath>
#include <fmt/format.h>
#include <utility>

#include "engine/core/checked.h"
#include "engine/core/error.h"

namespace loom::models::mm {
namespace {

using config::Value;
using Values = std::map<std::string, Value, std::less<>>;

bool means_same(const Value& one, const Value& other) {
  const auto a = one.number(), b = other.number();
  return a && b ? *a == *b : one.json() == other.json();
}

std::int64_t whole_of(const MmModel& model, std::string_view to) {
  const Value* value = find_value(model, to);
  return value == nullptr ? 0 : value->whole().value_or(0);
}

// The smallest ratio whose product with `width` is not below `inner`, as the reader of mlp_ratio cuts it.
double ratio_of(std::int64_t inner, std::int64_t width) {
  const double ratio = static_cast<double>(inner) / static_cast<double>(width);
  const auto product = static_cast<std::int64_t>(static_cast<double>(width) * ratio);
  return product < inner ? std::nextafter(ratio, HUGE_VAL) : ratio;
}

// Qwen2-VL's config.json has the inner size of the tower as a multiple of its width.
void settle_inner_size(MmModel& model) {
  const auto inner = model.values.extract(std::string(kMmInnerSize));
  const std::int64_t width = whole_of(model, "vision_config.embed_dim");
  if (inner.empty() || width < 1) return;
  const Value& value = inner.mapped();
  set_value(model, "vision_config.mlp_ratio",
            scalar_of(value, fmt::to_string(ratio_of(value.whole().value_or(0), width))));
}

// The family of InternVL's text.
void settle_text_type(MmModel& model) {
  const auto bias = model.values.extract(std::string(kMmQkvBias)), norm = model.values.extract(std::string(kMmQkNorm));
  const bool has_bias = !bias.empty() && bias.mapped().boolean().value_or(false);
  const bool has_norm = !norm.empty() && norm.mapped().boolean().value_or(false);
  if (has_bias && has_norm) {
    config_error("{}: {} is true, and {} too: no text model that is built has both; write false for one",
                 norm.mapped().where(), norm.mapped().path(), bias.mapped().path());
  }
  if (bias.empty() && norm.empty()) return;
  const char* const type = has_norm ? "qwen3" : has_bias ? "qwen2" : "llama";
  const Value& said = has_norm || bias.empty() ? norm.mapped() : bias.mapped();
  set_value(model, "text_config.model_type", scalar_of(said, type, Value::Style::kQuoted));
}

// That of fresh weights without kv_channels.
Value head_dim(const MmModel& model, const Value& hidden) {
  const std::int64_t size = hidden.whole().value_or(0);
  const std::int64_t heads = whole_of(model, "text_config.num_attention_heads");
  if (heads < 1 || size % heads != 0) {
    config_error("{}: {} is {}, and no multiple of num_attention_heads ({}); write kv_channels, the size of a head",
                 hidden.where(), hidden.path(), size, heads);
  }
  return scalar_of(hidden, fmt::to_string(size / heads));
}

struct Product {
  std::string_view key;                   // of told.*
  std::vector<std::string_view> factors;  // keys of config.json; where one is not given, nothing is compared
};

// Keys of the projectors that only restate other keys.
void check_products(MmModel& model) {
  const bool qwen2 = model.family == kMmQwen2;
  const std::string_view width = qwen2 ? "vision_config.embed_dim" : "vision_config.hidden_size";
  const Product products[] = {
      {"told.input_size", {width}},
      {"told.ffn_hidden_size", {width, "vision_config.spatial_merge_size", "vision_config.spatial_merge_size"}},
      {"told.vit_hidden_size", {"vision_config.hidden_size"}},
      {"told.llm_hidden_size", {"text_config.hidden_size"}}};
  for (const Product& product : products) {
    const auto told = model.values.extract(std::string(product.key));
    if (told.empty()) continue;
    std::int64_t expected = 1;
    std::string names;
    for (const std::string_view factor : product.factors) {
      const Value* value = find_value(model, factor);
      if (value == nullptr) {
        expected = 0;
        break;
      }
      expected = checked_multiply(expected, value->whole().value_or(0)).value_or(0);
      names += fmt::format("{}{}", names.empty() ? "" : " * ", value->path());
    }
    const Value& given = told.mapped();
    if (expected == 0 || given.whole() == expected) continue;
    config_error("{}: {} is {}, and {} is {}; write that", given.where(), given.path(), given.shown(), names, expected);
  }
}

}  // namespace
}  // namespace loom::models::mm

namespace loom::models {

config::Value scalar_of(const config::Value& of, std::string text, config::Value::Style style) {
  config::Value made(config::Value::Kind::kScalar, of.path(), of.key(), of.place());
  made.set_scalar(std::move(text), style);
  return made;
}

void set_value(MmModel& model, std::string_view to, config::Value value) {
  const auto [at, fresh] = model.values.try_emplace(std::string(to), value);
  if (fresh || mm::means_same(at->second, value)) return;
  config_error("{}: {} is {}, and {} is {}, and both mean the same; write one value, or remove one key", value.where(),
               value.path(), value.json(), at->second.path(), at->second.json());
}

const config::Value* find_value(const MmModel& model, std::string_view to) {
  const auto found = model.values.find(to);
  return found == model.values.end() ? nullptr : &found->second;
}

void settle_values(MmModel& model) {
  mm::settle_inner_size(model);
  if (model.family == kMmInternvl) mm::settle_text_type(model);
  mm::check_products(model);
}

mm::Values complete_values(const MmModel& model) {
  mm::Values values = model.values;
  const auto fill = [&](std::string_view to, const config::Value* from) {
    if (from != nullptr) values.try_emplace(std::string(to), *from);
  };
  fill("text_config.num_key_value_heads", find_value(model, "text_config.num_attention_heads"));
  const config::Value* hidden = find_value(model, "text_config.hidden_size");
  if (hidden != nullptr && find_value(model, "text_config.head_dim") == nullptr) {
    const config::Value dim = mm::head_dim(model, *hidden);
    fill("text_config.head_dim", &dim);
  }
  if (model.family == kMmInternvl) {
    const config::Value type = scalar_of(model.sections.at("text_config"), "llama", config::Value::Style::kQuoted);
    fill("text_config.model_type", &type);
  } else {
    fill(model.family == kMmQwen2 ? "vision_config.hidden_size" : "vision_config.out_hidden_size", hidden);
  }
  return values;
}

}  // namespace loom::models
