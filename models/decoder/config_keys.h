// Rows of a decoder's configuration: how each key of config.json is read and written. Private to
// models.
//
// Order    keys are read in the order of their table, so a fallback may be the value of a row above.
// Members  of DecoderConfig, or of MoeConfig or LatentAttentionConfig: config's member of that type is then created.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string_view>
#include <type_traits>
#include <vector>

#include "models/decoder/decoder_config.h"
#include "models/hub/config_reader.h"

namespace loom::models {

struct ConfigKey {
  std::string_view key;
  std::function<void(const ConfigReader& reader, DecoderConfig& config)> read;
  std::function<void(const DecoderConfig& config, nlohmann::ordered_json& json)> write;  // null: not written
};
using ConfigKeys = std::vector<ConfigKey>;

namespace keys {

// The part of a configuration that has members of T.
template <class T>
auto part_of() {
  if constexpr (std::is_same_v<T, MoeConfig>) return &DecoderConfig::moe;
  if constexpr (std::is_same_v<T, LatentAttentionConfig>) return &DecoderConfig::latent_attention;
}

template <class T, class V>
V& member(DecoderConfig& config, V T::*pointer) {
  if constexpr (std::is_same_v<T, DecoderConfig>) {
    return config.*pointer;
  } else {
    std::optional<T>& part = config.*part_of<T>();
    if (!part) part.emplace();
    return (*part).*pointer;
  }
}
template <class T, class V>
const V& member(const DecoderConfig& config, V T::*pointer) {
  if constexpr (std::is_same_v<T, DecoderConfig>) {
    return config.*pointer;
  } else {
    return (*(config.*part_of<T>())).*pointer;
  }
}

// A row of `pointer`, read by `value(reader, config)`.
template <class P, class Value>
ConfigKey row(std::string_view key, P pointer, Value value) {
  return {key,
          [=](const ConfigReader& reader, DecoderConfig& config) { member(config, pointer) = value(reader, config); },
          [=](const DecoderConfig& config, nlohmann::ordered_json& json) { json[key] = member(config, pointer); }};
}

// From 1 up.
template <class P>
ConfigKey count(std::string_view key, P pointer) {
  return row(key, pointer, [=](const ConfigReader& reader, const DecoderConfig&) { return reader.count(key); });
}
template <class P>
ConfigKey count(std::string_view key, P pointer, std::int64_t fallback) {
  return row(key, pointer,
             [=](const ConfigReader& reader, const DecoderConfig&) { return reader.count(key, fallback); });
}
// If the key is absent, `times` the value of another row.
template <class P>
ConfigKey count_or(std::string_view key, P pointer, P other, std::int64_t times = 1) {
  return row(key, pointer, [=](const ConfigReader& reader, const DecoderConfig& config) {
    return reader.count(key, times * member(config, other));
  });
}
// If the key is absent, the member keeps its value.
template <class P>
ConfigKey optional_count(std::string_view key, P pointer) {
  return count_or(key, pointer, pointer);
}
template <class P>
ConfigKey positive(std::string_view key, P pointer, double fallback) {
  return row(key, pointer,
             [=](const ConfigReader& reader, const DecoderConfig&) { return reader.positive(key, fallback); });
}
template <class P>
ConfigKey flag(std::string_view key, P pointer, bool fallback) {
  return row(key, pointer,
             [=](const ConfigReader& reader, const DecoderConfig&) { return reader.flag(key, fallback); });
}
template <class P>
ConfigKey number(std::string_view key, P pointer, double fallback) {
  return row(key, pointer,
             [=](const ConfigReader& reader, const DecoderConfig&) { return reader.number(key).value_or(fallback); });
}
// From 0 to below 1.
template <class P>
ConfigKey share(std::string_view key, P pointer, double fallback) {
  return row(key, pointer, [=](const ConfigReader& reader, const DecoderConfig&) {
    const double share = reader.number(key).value_or(fallback);
    if (!(share >= 0 && share < 1)) reader.reject(key, "it must be at least 0 and below 1");
    return share;
  });
}

// Keys with only one supported value.
ConfigKey only_flag(std::string_view key, bool built);
ConfigKey only_text(std::string_view key, std::string_view built);
ConfigKey no_dropout(std::string_view key);

// rope_theta, rope_parameters and rope_scaling, with all their keys. Must follow head_dim and
// max_position_embeddings.
ConfigKey rotary(double default_theta);

}  // namespace keys

// Checks the rotary keys that depend on head_dim, once that is known.
void check_rotary(const ConfigReader& reader, const DecoderConfig& config);

}  // namespace loom::models
