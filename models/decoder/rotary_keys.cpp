// The keys of rotary embeddings, in the two spellings that config.json has for them: rope_parameters with rope_theta in
// it (transformers 5), or rope_theta with rope_scaling beside it.
#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/format.h>

#include "engine/core/spelling.h"
#include "models/decoder/config_keys.h"

namespace loom::models {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kMostPositions = config::kMostCount;

struct TypeName {
  std::string_view name;
  RopeType type;
};
constexpr std::array<TypeName, 8> kTypes{{{"default", RopeType::kDefault},
                                          {"mrope", RopeType::kDefault},  // the first name of one with mrope_section
                                          {"linear", RopeType::kLinear},
                                          {"dynamic", RopeType::kDynamic},
                                          {"llama3", RopeType::kLlama3},
                                          {"yarn", RopeType::kYarn},
                                          {"longrope", RopeType::kLongRope},
                                          {"su", RopeType::kLongRope}}};  // the first name of longrope

// The whole file, and the block whose keys count.
struct Given {
  const ConfigReader& file;
  const ConfigReader& block;
};

struct BlockKey {
  std::string_view key;
  std::vector<RopeType> types;
  std::function<void(const Given& given, DecoderConfig& config)> read;
  std::function<void(const RotaryScaling& scaling, Json& block)> write;

  bool is_of(RopeType type) const { return std::ranges::find(types, type) != types.end(); }
};

// `value(given, config)` is the value of the key.
template <class T, class Value>
BlockKey row(std::string_view key, std::vector<RopeType> types, T RotaryScaling::*member, Value value) {
  return {key, std::move(types),
          [=](const Given& given, DecoderConfig& config) { config.rope_scaling.*member = value(given, config); },
          [=](const RotaryScaling& scaling, Json& block) { block[key] = scaling.*member; }};
}

BlockKey number(std::string_view key, std::vector<RopeType> types, double RotaryScaling::*member, double fallback) {
  return row(key, std::move(types), member, [=](const Given& given, const DecoderConfig&) {
    const double value = given.block.number(key).value_or(fallback);
    if (!std::isfinite(value) || value < 0) given.block.reject(key, "it must be at least 0");
    return value;
  });
}

BlockKey positive(std::string_view key, std::vector<RopeType> types, double RotaryScaling::*member, double fallback) {
  return row(key, std::move(types), member,
             [=](const Given& given, const DecoderConfig&) { return given.block.positive(key, fallback); });
}

std::vector<double> read_numbers(const ConfigReader& block, std::string_view key) {
  std::vector<double> numbers;
  if (!block.has(key)) return numbers;
  for (const config::Value& item : block.given(key)->items()) {
    const auto number = item.number();
    if (!number) block.reject(key, "numbers are expected");
    numbers.push_back(*number);
  }
  return numbers;
}

// One number a pair of dims; how many is checked once head_dim is known.
BlockKey per_pair(std::string_view key, std::vector<double> RotaryScaling::*member) {
  return row(key, {RopeType::kLongRope}, member, [=](const Given& given, const DecoderConfig&) {
    const std::vector<double> values = read_numbers(given.block, key);
    const bool fit = std::ranges::all_of(values, [](double value) { return std::isfinite(value) && value > 0; });
    if (values.empty() || !fit) given.block.reject(key, "a list of numbers above 0 is needed, head_dim / 2 of them");
    return values;
  });
}

std::int64_t read_original(const Given& given, const DecoderConfig& config) {
  constexpr std::string_view kKey = "original_max_position_embeddings";
  const std::int64_t of_block = given.block.count(kKey, config.max_position_embeddings);
  const std::int64_t original = given.file.count(kKey, of_block);
  if (original < 2) (given.file.has(kKey) ? given.file : given.block).reject(kKey, "it must be at least 2");
  return original;
}

double read_factor(const Given& given, const DecoderConfig& config) {
  const RotaryScaling& scaling = config.rope_scaling;
  const auto original = static_cast<double>(scaling.original_max_position_embeddings);
  const auto most = static_cast<double>(config.max_position_embeddings);
  const bool may_follow = scaling.type == RopeType::kYarn || scaling.type == RopeType::kLongRope;
  const auto said = given.block.number("factor");
  if (!said && !may_follow) given.block.reject("factor", "rope_type {} needs a number from 1 up", name(scaling.type));
  const double follows = most / original;  // longrope: below 1 it scales nothing, as 1 does
  const double factor = said.value_or(scaling.type == RopeType::kLongRope ? std::max(follows, 1.0) : follows);
  if (!(factor >= 1)) {
    given.block.reject(
        "factor", "{}",
        said
            ? "it must be at least 1"
            : fmt::format("max_position_embeddings / original_max_position_embeddings is {}, and it must be at least 1",
                          factor));
  }
  const double positions = std::max(most, original), largest = static_cast<double>(kMostPositions) / positions;
  if (factor > largest) given.block.reject("factor", "of {} positions it must be at most {}", positions, largest);
  return factor;
}

void read_mrope_section(const Given& given, DecoderConfig& config) {
  std::vector<std::int64_t>& section = config.rope_scaling.mrope_section;
  section = given.block.integers("mrope_section");
  const bool fit = std::ranges::all_of(section, [](std::int64_t size) { return size >= 0 && size <= kMostPositions; });
  if (!given.block.has("mrope_section") || (section.size() == 3 && fit)) return;
  given.block.reject("mrope_section", "three numbers are expected: of frequencies for time, height and width");
}

const std::vector<BlockKey>& block_keys() {
  using S = RotaryScaling;
  static const std::vector<BlockKey> all{
      row("original_max_position_embeddings", {RopeType::kLlama3, RopeType::kYarn, RopeType::kLongRope},
          &S::original_max_position_embeddings, read_original),
      row("factor", {RopeType::kLinear, RopeType::kDynamic, RopeType::kLlama3, RopeType::kYarn, RopeType::kLongRope},
          &S::factor, read_factor),
      positive("low_freq_factor", {RopeType::kLlama3}, &S::low_freq_factor, 0),
      positive("high_freq_factor", {RopeType::kLlama3}, &S::high_freq_factor, 0),
      positive("beta_fast", {RopeType::kYarn}, &S::beta_fast, 32),
      positive("beta_slow", {RopeType::kYarn}, &S::beta_slow, 1),
      number("mscale", {RopeType::kYarn}, &S::mscale, 0),
      number("mscale_all_dim", {RopeType::kYarn}, &S::mscale_all_dim, 0),
      row("truncate", {RopeType::kYarn}, &S::truncate,
          [](const Given& given, const DecoderConfig&) { return given.block.flag("truncate", true); }),
      {"attention_factor",
       {RopeType::kYarn, RopeType::kLongRope},
       [](const Given& given, DecoderConfig& config) {
         if (given.block.has("attention_factor"))
           config.rope_scaling.attention_factor = given.block.positive("attention_factor", 1);
       },
       [](const S& scaling, Json& block) {
         if (scaling.attention_factor) block["attention_factor"] = *scaling.attention_factor;
       }},
      {"mrope_section",
       {RopeType::kDefault},
       read_mrope_section,
       [](const S& scaling, Json& block) {
         if (!scaling.mrope_section.empty()) block["mrope_section"] = scaling.mrope_section;
       }},
      {"mrope_interleaved",
       {RopeType::kDefault},
       [](const Given& given, DecoderConfig& config) {
         config.rope_scaling.mrope_interleaved = given.block.flag("mrope_interleaved", false);
       },
       [](const S& scaling, Json& block) {
         if (scaling.mrope_interleaved) block["mrope_interleaved"] = true;
       }},
      per_pair("short_factor", &S::short_factor),
      per_pair("long_factor", &S::long_factor),
  };
  return all;
}

// rope_scaling replaces rope_parameters, unless it is empty.
std::optional<ConfigReader> block_of(const ConfigReader& reader) {
  auto scaling = reader.mapping("rope_scaling");
  auto parameters = reader.mapping("rope_parameters");
  if (scaling && !scaling->value().items().empty()) return scaling;
  return parameters ? parameters : scaling;
}

void refuse_layer_types(const ConfigReader& block) {
  for (const config::Value& member : block.value().items()) {
    if (!member.is_mapping()) continue;
    block.reject(member.key(), "rotary embeddings of their own for a type of layers are not built");
  }
}

RopeType read_type(const ConfigReader& block) {
  const std::string_view key = block.has("rope_type") ? "rope_type" : "type";
  const std::string text = block.text(key, "default");
  block.text("type", "");
  std::vector<std::string> known;
  for (const TypeName& type : kTypes) {
    if (type.name == text) return type.type;
    known.emplace_back(type.name);
  }
  const auto near = nearest_spelling(text, known);
  block.reject(key, "known are {}{}", fmt::join(known, ", "), near ? fmt::format("; did you mean '{}'?", *near) : "");
}

// Must be equal wherever the file has it.
double read_theta(const ConfigReader& reader, double fallback) {
  std::optional<double> theta;
  if (reader.has("rope_theta")) theta = reader.positive("rope_theta", fallback);
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    const auto block = reader.mapping(key);
    if (!block || !block->has("rope_theta")) continue;
    const double inner = block->positive("rope_theta", fallback);
    if (theta && *theta != inner) block->reject("rope_theta", "the file also says {}", *theta);
    theta = inner;
  }
  return theta.value_or(fallback);
}

void refuse_partial(const ConfigReader& reader) {
  if (reader.number("partial_rotary_factor").value_or(1) != 1)
    reader.reject("partial_rotary_factor", "only 1 is built");
}

// Where the numbers make no frequencies.
void check_scaling(const ConfigReader& block, const DecoderConfig& config) {
  const RotaryScaling& scaling = config.rope_scaling;
  if (scaling.type == RopeType::kLlama3 && scaling.high_freq_factor <= scaling.low_freq_factor) {
    block.reject("high_freq_factor", "it must be above low_freq_factor ({})", scaling.low_freq_factor);
  }
  if (scaling.type != RopeType::kYarn) return;
  if (scaling.beta_fast < scaling.beta_slow) {
    block.reject("beta_fast", "it must be at least beta_slow ({})", scaling.beta_slow);
  }
  if (config.rope_theta <= 1)
    block.reject(block.has("rope_type") ? "rope_type" : "type", "it needs a rope_theta above 1");
}

void read_rotary(const ConfigReader& reader, DecoderConfig& config, double default_theta) {
  config.rope_theta = read_theta(reader, default_theta);
  refuse_partial(reader);
  reader.integer("original_max_position_embeddings");
  const auto block = block_of(reader);
  if (!block) return;
  refuse_layer_types(*block);
  config.rope_scaling.type = read_type(*block);
  refuse_partial(*block);
  block->has("rope_theta");
  for (const BlockKey& key : block_keys()) {
    if (key.is_of(config.rope_scaling.type)) key.read({reader, *block}, config);
  }
  block->refuse_unread();
  check_scaling(*block, config);
}

void write_rotary(const DecoderConfig& config, Json& json) {
  Json scaling{{"rope_type", name(config.rope_scaling.type)}};
  for (const BlockKey& key : block_keys()) {
    if (key.is_of(config.rope_scaling.type)) key.write(config.rope_scaling, scaling);
  }
  json["rope_theta"] = config.rope_theta;
  json["rope_parameters"] = {{"rope_theta", config.rope_theta}};
  json["rope_parameters"].update(scaling);
  const bool plain = config.rope_scaling.type == RopeType::kDefault && config.rope_scaling.mrope_section.empty();
  if (!plain) json["rope_scaling"] = scaling;
}

void check_mrope(const ConfigReader& reader, const RotaryScaling& scaling, std::int64_t dim) {
  if (scaling.mrope_section.empty()) return;
  const std::int64_t sum = scaling.mrope_section[0] + scaling.mrope_section[1] + scaling.mrope_section[2];
  if (2 * sum == dim) return;
  block_of(reader)->reject("mrope_section", "the sum is {}, and half of head_dim {} is {}", sum, dim, dim / 2);
}

}  // namespace

ConfigKey keys::rotary(double default_theta) {
  return {"rope_parameters",
          [default_theta](const ConfigReader& reader, DecoderConfig& config) {
            read_rotary(reader, config, default_theta);
          },
          write_rotary};
}

void check_rotary(const ConfigReader& reader, const DecoderConfig& config) {
  const RotaryScaling& scaling = config.rope_scaling;
  const std::int64_t dim = rotary_of(config).head_dim;
  if (scaling.type == RopeType::kDynamic && dim < 4) {
    reader.reject("head_dim", "dynamic rope scaling needs at least 4");
  }
  check_mrope(reader, scaling, dim);
  if (scaling.type != RopeType::kLongRope) return;
  const auto block = block_of(reader);
  const auto check = [&](std::string_view key, const std::vector<double>& values) {
    if (std::ssize(values) == dim / 2) return;
    block->reject(key, "it has {} numbers, and half of head_dim {} is {}", values.size(), dim, dim / 2);
  };
  check("short_factor", scaling.short_factor);
  check("long_factor", scaling.long_factor);
}

}  // namespace loom::models
