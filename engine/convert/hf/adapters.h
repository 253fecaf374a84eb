// A checkpoint of LoRA adapters as peft's folder. Private to engine/convert.
//
// Errors   ConfigError with the checkpoint: options for whole models, adapters of modules that the base in the
//          assets folder does not have, and adapters that models::AdapterFolder refuses.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "engine/convert/convert.h"
#include "engine/convert/hf/assets.h"
#include "engine/formats/dcp/dcp_folder.h"

namespace loom::checkpoint {

// The text of adapter_config.json in a checkpoint of adapters; none for a checkpoint of a whole model.
std::optional<std::string> adapter_config_of(const io::DcpFolder& checkpoint);

// The tensors of adapter_model.safetensors, from the tensors below "model.".
std::vector<OutputTensor> adapter_outputs(const DcpToHf& options, const Assets& assets, const TensorList& model,
                                          const std::filesystem::path& checkpoint);

// Writes it beside the weights in `folder`; then reads the folder back as peft's.
void write_adapter_config(const std::filesystem::path& folder, const std::string& config_json,
                          const std::filesystem::path& checkpoint);

}  // namespace loom::checkpoint
