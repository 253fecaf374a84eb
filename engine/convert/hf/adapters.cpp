#include "engine/convert/hf/adapters.h"

#include <algorithm>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/io/atomic_file.h"
#include "models/decoder/reward_model.h"
#include "models/lora/adapter_folder.h"

namespace loom::checkpoint {
namespace {

void refuse_options_of_models(const DcpToHf& options, const std::filesystem::path& checkpoint) {
  const std::pair<bool, const char*> of_models[] = {{!options.names.hf_prefix.empty(), "--hf-prefix"},
                                                    {!options.names.dcp_prefix.empty(), "--dcp-prefix"},
                                                    {!options.ties.empty(), "--tie-weight-mapping"},
                                                    {!options.fused_linear_names.empty(), "--fused-linear-names"},
                                                    {options.shard_bytes.has_value(), "--shard-size"}};
  for (const auto& [given, flag] : of_models) {
    if (!given) continue;
    config_error(
        "{} is for whole models, and {} holds LoRA adapters, which are written as one file with peft's names; "
        "remove it",
        flag, escaped(checkpoint.string()));
  }
}

// "model.layers.0.mlp.up_proj.lora_A.weight" -> "model.layers.0.mlp.up_proj.weight"; of a module that is trained whole,
// its own name.
std::string name_in_base(const std::string& path) {
  for (const std::string_view half : {".lora_A.weight", ".lora_B.weight"}) {
    if (path.ends_with(half)) return path.substr(0, path.size() - half.size()) + ".weight";
  }
  return path;
}

void check_base(const Assets& assets, const std::string& path, const std::filesystem::path& checkpoint) {
  if (!assets.names() || path == models::kRewardHeadWeight) return;
  const std::string name = name_in_base(path);
  if (std::ranges::find(*assets.names(), name) != assets.names()->end()) return;
  config_error(
      "{}: its adapters have '{}', and the base has no '{}' by {}; give the folder of the base they were trained "
      "beside",
      escaped(checkpoint.string()), shown_text(path), shown_text(name), assets.wanted_by());
}

}  // namespace

std::optional<std::string> adapter_config_of(const io::DcpFolder& checkpoint) {
  const io::DcpItem* item = checkpoint.find("lora.adapter_config");
  if (item == nullptr || item->is_tensor) return std::nullopt;
  const io::PlainValue value = checkpoint.value(*item);
  return value.is(io::PlainValue::Kind::kText) ? std::optional(value.as_text()) : std::nullopt;
}

std::vector<OutputTensor> adapter_outputs(const DcpToHf& options, const Assets& assets, const TensorList& model,
                                          const std::filesystem::path& checkpoint) {
  refuse_options_of_models(options, checkpoint);
  std::vector<OutputTensor> outputs;
  for (const SourceTensor& tensor : model.tensors()) {
    check_base(assets, tensor.name, checkpoint);
    outputs.push_back(whole(tensor, std::string(models::kAdapterPrefix) + tensor.name));
    if (options.dtype && is_floating(tensor.dtype)) outputs.back().dtype = *options.dtype;
  }
  return outputs;
}

void write_adapter_config(const std::filesystem::path& folder, const std::string& config_json,
                          const std::filesystem::path& checkpoint) {
  io::write_text(folder / models::kAdapterConfigFile, config_json);
  try {
    const models::AdapterFolder written(folder);
  } catch (const ConfigError& error) {
    config_error("{}: what it holds are no adapters: {}", escaped(checkpoint.string()), error.what());
  }
}

}  // namespace loom::checkpoint
