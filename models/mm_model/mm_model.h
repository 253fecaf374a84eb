// MmModel: the model that MindSpeed-MM's model.json describes, tower by tower.
//
// Files    a .json file, or a .yaml file whose `model` is such a mapping (that of pretrain_transformers.py).
// Models   `model_id` says which: qwen2vl, qwen2_5vl, qwen3_vl (models/qwen_vl), InternVL, InternVL2.5, InternVL3,
//          internvl (models/internvl; its text is Llama's, Qwen2's or Qwen3's by add_qkv_bias and qk_layernorm).
// Keys     each is a row of mm_model_keys(): built; taken with one value only, and refused by name with the reason
//          otherwise; or without effect here, named in one notice. An unknown key is refused with the nearest one.
//          null counts as absent. Keys of one meaning (ffn_hidden_size, intermediate_size) must have one value.
// Weights  fresh ones need every size. Beside a folder of weights the file may leave keys out, and those that it has
//          must be what the folder's config.json says.
// Freeze   per tower. As in MindSpeed-MM a vision_encoder is frozen unless it says freeze: false.
// Threads  plain values, pure functions.
// Errors   ConfigError with the file, the key's path and its value.
// Source   MindSpeed-MM: examples/qwen2vl, qwen2.5vl, qwen3vl, internvl2, internvl2.5 and internvl3, pretrain_vlm.py.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/config/value.h"

namespace loom::models {

class ConfigReader;

// A key that has the meaning of a flag of the job. Key and flag must agree.
struct MmFlag {
  std::string_view flag;  // "--seq-length"
  std::string path;       // of the key: "text_decoder.seq_length"
  std::string value;      // in the flag's words; of a toggle "true" or "false"
  bool sets = false;      // where the flag is not given, the key gives its value
};

struct MmModel {
  std::string where;    // the file, for messages
  unsigned family = 0;  // one of the bits below
  // By the dotted keys of transformers' config.json: the values of the file, each with the path and the place of the
  // key that gave it.
  std::map<std::string, config::Value, std::less<>> values = {};
  // By the same keys: the mappings of the file that hold them.
  std::map<std::string, config::Value, std::less<>> sections = {};
  std::vector<std::string> frozen = {};  // towers (models/mixin/multimodal_module.h)
  std::optional<std::filesystem::path> init_from_hf_path = {};
  std::vector<MmFlag> flags = {};
  std::vector<std::string> notices = {};  // a line each, for one rank to print
};

MmModel read_mm_model(const std::filesystem::path& path);
MmModel parse_mm_model(std::string_view json, std::string_view file_name);

// The configuration of fresh weights, whose messages show the paths of the file. ConfigError for a size that is
// missing.
ConfigReader reader_of(const MmModel& model);
// The same as the text of a config.json. ConfigError also for values that do not fit together.
std::string config_json(const MmModel& model);
// ConfigError for the first key that differs from the configuration of a folder of weights, with both values.
void check_weights(const MmModel& model, const ConfigReader& weights);

// --- the table

enum class MmSection : std::uint8_t { kModel, kLoss, kVision, kProjector, kText };
// "image_encoder.vision_encoder"; of the whole file "".
std::string_view path_of(MmSection section);

enum class MmEffect : std::uint8_t { kBuilt, kOneValue, kNone };

// The models of a row, as bits.
inline constexpr unsigned kMmQwen2 = 1, kMmQwen25 = 2, kMmQwen3 = 4, kMmInternvl = 8;
inline constexpr unsigned kMmQwen = kMmQwen2 | kMmQwen25 | kMmQwen3, kMmAll = kMmQwen | kMmInternvl;
// "all", "Qwen-VL", "Qwen2-VL, Qwen3-VL".
std::string models_text(unsigned models);

struct MmKey {
  MmSection section;
  std::string_view name;
  unsigned models;
  MmEffect effect;
  // Of kBuilt: the key of config.json that it becomes, or what it says. Of kOneValue: why other values are refused, and
  // what to write. Of kNone: why.
  std::string_view about;
  // Of kBuilt: takes the value. Of kOneValue: false for a refused one.
  bool (*read)(const MmKey& key, const config::Value& value, MmModel& model) = nullptr;
  bool is_needed = false;  // for fresh weights
};
std::span<const MmKey> mm_model_keys();

}  // namespace loom::models
