// Folders of adapters, and their regexes on a path: adapter_config.json beside adapter_model.safetensors. An input that
// begins with '{' is the configuration beside good weights; another is the weights beside a good configuration.
#include "engine/regex/regex.h"
#include "models/lora/adapter_folder.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace loom;

constexpr std::string_view kConfig =
    R"({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q"], "rank_pattern": {"m.v": 1}})";

std::string weights() {
  const std::string header =
      R"({"base_model.model.m.q.lora_A.weight":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},)"
      R"("base_model.model.m.q.lora_B.weight":{"dtype":"F32","shape":[1,2],"data_offsets":[8,16]}})";
  std::string bytes(8, '\0');
  bytes[0] = static_cast<char>(header.size() & 0xff);
  bytes[1] = static_cast<char>(header.size() >> 8);
  return bytes + header + std::string(16, '\1');
}

}  // namespace

LOOM_FUZZ_TARGET(adapter_folder) {
  const std::string_view text = fuzz::text_of(data, size);
  const bool is_config = text.starts_with('{');
  return fuzz::answered_or_refused([&] {
    fuzz::written(models::kAdapterConfigFile, is_config ? text : kConfig);
    fuzz::written(models::kAdapterWeightsFile, is_config ? weights() : std::string(text));
    const models::AdapterFolder folder(fuzz::scratch_folder());
    if (const auto& pattern = folder.options().target_regex) {
      regex::RegexScratch scratch;
      regex::FullMatch(*pattern, "target_modules").matches("model.layers.11.self_attn.q_proj", scratch);
    }
    for (const auto& pair : folder.pairs()) {
      if (pair.a->shape[0] != pair.b->shape[1]) fuzz::found("halves of two ranks", pair.path);
      if (pair.a->shape[0] != folder.options().rank_of(pair.path)) fuzz::found("a rank of another file", pair.path);
    }
    if (folder.pairs().empty()) fuzz::found("a folder without adapters", "");
  });
}
