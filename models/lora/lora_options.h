// LoraOptions: the modules that get adapters, and their form: a low-rank update beside a frozen weight.
//
// Scale    alpha / r, or alpha / sqrt(r) with rsLoRA. A module that rank_pattern or alpha_pattern names has its own.
// Targets  as peft matches target_modules: an entry means every module whose path equals it, or ends with "." and it;
//          "all-linear" every linear module but the output layer; a regex, all of a path. In an entry "{*}" means
//          any characters, dots too, and the entry is then a whole path. Megatron's names are read as Hugging Face's:
//          linear_qkv (q, k, v), linear_proj (o), linear_fc1 (gate, up), linear_fc2 (down).
// Source   peft's LoraConfig; MindSpeed-LLM's flags; MindSpeed-MM's training.lora.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace loom::models {

// First values. kDefault: A uniform within 1 / sqrt(in) (Kaiming with a = sqrt 5), B zero. kGaussian: A normal with
// standard deviation 1 / r, B zero. kRandom: both uniform, as peft's init_lora_weights false.
enum class LoraInit : std::uint8_t { kDefault, kGaussian, kRandom };

// The flags of a command line; missing ones are none.
struct LoraFlags {
  std::optional<std::int64_t> r;  // 16
  std::optional<double> alpha;    // 32
  std::optional<double> dropout;  // 0
  std::vector<std::string> target_modules;
  std::vector<std::string> modules_to_save;
  bool use_rslora = false;
  std::optional<std::filesystem::path> load;  // peft's folder: weights, and all of the above that is not given

  // Whether the flags request adapters.
  bool on() const { return !target_modules.empty() || load.has_value(); }
};

struct LoraOptions {
  std::int64_t r = 16;
  double alpha = 32;
  double dropout = 0;  // of the adapter's input, while the model trains
  bool use_rslora = false;
  LoraInit init = LoraInit::kDefault;
  std::vector<std::string> target_modules;  // empty with a regex
  std::optional<std::string> target_regex;
  std::vector<std::string> modules_to_save;       // trained whole, and saved beside the adapters
  std::vector<std::int64_t> layers_to_transform;  // empty: all
  std::map<std::string, std::int64_t> rank_pattern;
  std::map<std::string, double> alpha_pattern;
  std::optional<std::filesystem::path> load;  // peft's folder with the initial values
  std::string where;                          // the beginning of messages: a flag, or "file:line:column: lora"

  std::int64_t rank_of(std::string_view path) const;
  double alpha_of(std::string_view path) const;
  double scale_of(std::string_view path) const;
};

// ConfigError for an invalid rank, alpha or dropout. 1 <= r, 0 < alpha, 0 <= dropout < 1.
void check(const LoraOptions& options);

}  // namespace loom::models
