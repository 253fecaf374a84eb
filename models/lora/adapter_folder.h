// AdapterFolder: adapters in peft's format: adapter_config.json and adapter_model.safetensors.
//
// Names     "base_model.model." + path + ".lora_A.weight" and ".lora_B.weight"; modules_to_save under their own names.
//           The adapter's name that peft leaves out (".default") is ignored.
// Refused   features that are not built and would change the result: DoRA, biases, adapters of embeddings and of fused
//           expert weights, another peft_type, initial values that changed the base (pissa, olora, corda, loftq).
// Errors    ConfigError with file and key, or file and tensor: broken JSON, a missing half of an adapter, ranks of A
//           and B that differ from each other or from the file's r.
// Threads   any, while it is not changed.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/formats/safetensors/safetensors.h"
#include "engine/tensor/tensor.h"
#include "models/lora/lora.h"

namespace loom::models {

inline constexpr std::string_view kAdapterPrefix = "base_model.model.";  // of every name in the file
inline constexpr const char* kAdapterConfigFile = "adapter_config.json";
inline constexpr const char* kAdapterWeightsFile = "adapter_model.safetensors";

class AdapterFolder {
 public:
  // Reads the configuration and the header of the weights.
  explicit AdapterFolder(const std::filesystem::path& folder);

  const std::filesystem::path& folder() const { return folder_; }
  const LoraOptions& options() const { return options_; }
  bool fan_in_fan_out() const { return fan_in_fan_out_; }
  // base_model_name_or_path; empty if the file has none.
  const std::string& base() const { return base_; }
  // Keyed by the parameter's path in the model.
  const std::map<std::string, const io::StoredTensor*>& tensors() const { return tensors_; }
  // An adapter: the path of its module, A [r, in], B [out, r].
  struct Pair {
    std::string path;
    const io::StoredTensor* a = nullptr;
    const io::StoredTensor* b = nullptr;
  };
  const std::vector<Pair>& pairs() const { return pairs_; }
  // The file of the weights, for messages.
  std::string weights_file() const { return (folder_ / kAdapterWeightsFile).string(); }

 private:
  void read_config();
  void read_names();
  void pair_up();

  std::filesystem::path folder_;
  LoraOptions options_;
  bool fan_in_fan_out_ = false;
  std::string base_;
  io::SafetensorsFile weights_;
  std::map<std::string, const io::StoredTensor*> tensors_;
  std::vector<Pair> pairs_;
};

// ConfigError unless the folder has exactly the tuned parameters of `model`, of their shapes.
void check_adapter(nn::Module& model, const AdapterFolder& folder);
// check_adapter(), then each slot gets its box, converted. Precondition: the parameters have bytes.
void load_adapter(nn::Module& model, const AdapterFolder& folder);

// The text of adapter_config.json.
std::string adapter_config_json(const Lora& lora, const std::string& base);

// Writes both files, making the folder; each appears whole or not at all. `tensors`: whole tuned parameters by path.
void write_adapter_folder(const std::filesystem::path& folder, const std::string& config_json,
                          const std::vector<std::pair<std::string, Tensor>>& tensors);

}  // namespace loom::models
