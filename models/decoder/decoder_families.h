// The differences between decoder families: names, and the keys of config.json. A new family is one entry of the
// table in decoder_families.cpp. Private to models.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string_view>

#include "models/decoder/config_keys.h"
#include "models/decoder/decoder_config.h"
#include "models/hub/config_reader.h"

namespace loom::models {

class ModelHub;

struct DecoderFamilyEntry {
  DecoderFamily family;
  std::string_view model_type;    // of config.json
  std::string_view class_prefix;  // of transformers' classes: "Qwen2" of Qwen2DecoderLayer
  std::string_view architecture;  // the causal model's class; empty: there is none
  // The keys that are specific to the family.
  ConfigKeys (*keys)();
  // Fills in values that no key of the family sets. Called once all keys are read.
  void (*settle)(DecoderConfig& config);
  std::string_view model_class = "Model";  // behind the prefix
  std::string_view mlp_prefix = {};        // of the MLP's class; empty: class_prefix
};

std::span<const DecoderFamilyEntry> decoder_families();
const DecoderFamilyEntry& entry_of(DecoderFamily family);

// A decoder's config from a file's mapping or, for models of several towers, from one inside it ("text_config"); and
// back. `family`: that of a mapping whose model_type is the whole model's.
DecoderConfig read_decoder_config(const ConfigReader& reader, std::optional<DecoderFamily> family = {});
nlohmann::ordered_json decoder_json(const DecoderConfig& config);

// Every family of the table, under its architecture and its model_type.
void register_decoders(ModelHub& hub);

}  // namespace loom::models
