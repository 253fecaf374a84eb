// A checkpoint of LoRA adapters as peft's folder. Private to engine/convert.
//
// Errors   ConfigError with the checkpoint: options that are of whole models, adapters of modules that the base in the
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

// The text of adapter_config.json that a checkpoint of adapters holds; none in a checkpoint of a whole model.
std::optional<std::string> adapter_config_of(const io::DcpFolder& checkpoint);

// The tensors of adapter_model.safetensors, from those below "model.".
std::vector<OutputTensor> adapter_outputs(const DcpToHf& options, const Assets& assets, const TensorList& model,
                                          const std::filesystem::path& checkpoint);

// Beside the weights, which are in `folder`; then the folder is read back as peft's.
void write_adapter_config(const std::filesystem::path& folder, const std::string& config_json,
                          const std::filesystem::path& checkpoint);

}  // namespace loom::checkpoint
