// Configurations of models, decoders and InternVL, JSON (an input that begins with '{') and YAML.
#include "models/decoder/decoder_config.h"
#include "models/internvl/internvl_config.h"
#include "tests/fuzz/fuzz.h"

LOOM_FUZZ_TARGET(model_config) {
  using namespace loom;
  const std::string_view text = fuzz::text_of(data, size);
  const bool json = text.starts_with('{');
  fuzz::answered_or_refused([&] {
    const auto config =
        json ? models::parse_decoder_json(text, "config.json") : models::parse_decoder_yaml(text, "model.yaml");
    // What is written is read as the same model.
    if (models::parse_decoder_json(models::to_json(config), "config.json") != config) {
      fuzz::found("to_json() is another model", models::to_json(config));
    }
  });
  return fuzz::answered_or_refused([&] {
    json ? models::parse_internvl_json(text, "config.json") : models::parse_internvl_yaml(text, "model.yaml");
  });
}
