// DataConfig: dataset_param and dataloader_param, of MindSpeed-MM's data.json or of `data` in a YAML file.
//
// Keys       each is a row of data_config_keys(): applied; taken with one value only, and refused by name with the
//            reason otherwise; or without effect here, named in one notice. An unknown key is refused with the nearest
//            one. null counts as absent, in `attr` as switched off.
// Types      dataset_type huggingface (Qwen-VL) and multimodal (InternVL) are built; the others are refused by name.
// Sizes      batch_size gives way to the micro-batch of the job, with a notice where they differ; num_workers and seed
//            have no effect: BaseRandomBatchSampler's order depends on the epoch alone.
// Threads    plain values, pure functions.
// Errors     ConfigError with file, line and key.
// Source     mindspeed_mm/data/data_utils/func_utils/convert.py, model_args.py, data/dataloader/dataloader.py.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/config/value.h"
#include "engine/multimodal/mllm_file.h"
#include "engine/multimodal/video_frames.h"

namespace loom::multimodal {

enum class DatasetType : std::uint8_t { kHuggingFace, kMultimodal };

// basic_parameters of huggingface.
struct TextOptions {
  std::string template_name = {};  // empty: the model's own
  std::string chat_template = {};  // a path; empty: none
  std::string dataset = {};
  std::filesystem::path dataset_dir = "data";
  std::int64_t cutoff_len = 1024;
  bool cutoff_is_given = false;
  bool enable_thinking = true;  // false: of a template without thoughts
  bool train_on_prompt = false;
  bool mask_history = false;
  std::optional<std::int64_t> max_samples = {};
  std::string val_dataset = {};
  std::optional<std::int64_t> val_max_samples = {};
  double val_rate = 0;  // of the data, [0, 1)
};

// preprocess_parameters of huggingface; sizes in pixels.
struct PictureOptions {
  std::filesystem::path model_name_or_path;
  std::int64_t image_max_pixels = 768 * 768;
  std::int64_t image_min_pixels = 32 * 32;
  std::int64_t video_max_pixels = 256 * 256;
  std::int64_t video_min_pixels = 16 * 16;
  VideoOptions video = {};
};

// One of basic_parameters of multimodal.
struct InternvlFiles {
  std::string data_path;
  std::filesystem::path data_folder;
  double repeat_time = 1;
};

// The keys of multimodal beside them.
struct InternvlOptions {
  std::vector<InternvlFiles> files;
  std::filesystem::path tokenizer;
  std::string template_name;
  std::int64_t image_size = 224;
  std::int64_t patch_size = 14;
  double down_sample_ratio = 0.5;
  bool dynamic_image_size = false;
  bool use_thumbnail = false;
  std::int64_t min_dynamic_patch = 1;
  std::int64_t max_dynamic_patch = 6;
  bool pad_to_square = false;
  std::array<double, 3> mean = {0.485, 0.456, 0.406};
  std::array<double, 3> std = {0.229, 0.224, 0.225};
};

struct LoaderOptions {
  bool shuffle = false;
  bool drop_last = false;
  bool data_sharding = false;
  std::optional<std::int64_t> batch_size = {};
  bool ignore_pad_token_for_loss = true;
  std::optional<std::int32_t> pad_id = {};
};

struct DataConfig {
  std::string where;  // the file, for messages
  DatasetType type = DatasetType::kHuggingFace;
  TextOptions text = {};
  PictureOptions pictures = {};
  DatasetAttr attr = {};
  InternvlOptions internvl = {};
  LoaderOptions loader = {};
  std::vector<std::string> notices = {};  // a line each, for one rank to print
};

// What the job has beside the file.
struct DataJob {
  std::int64_t micro_batch_size = 1;
  std::optional<std::int64_t> seq_length = {};  // cutoff_len where the file does not give it, and InternVL's
};

// `node` holds dataset_param and dataloader_param.
DataConfig read_data_config(const config::Value& node, const DataJob& job);
// A data.json, or a YAML file whose `data` is such a node (MindSpeed-MM's native configuration).
DataConfig read_data_config_file(const std::filesystem::path& path, const DataJob& job);

// --- the table

enum class KeySection : std::uint8_t {
  kHuggingFaceDataset,
  kHuggingFaceBasic,
  kHuggingFacePreprocess,
  kAttr,
  kInternvlDataset,
  kInternvlBasic,
  kInternvlPreprocess,
  kInternvlTokenizer,
  kLoader,
  kCollate,
};
// "dataset_param.basic_parameters"
std::string_view path_of(KeySection section);

enum class KeyEffect : std::uint8_t { kApplied, kOneValue, kNone };

struct DataKey {
  KeySection section;
  std::string_view name;
  KeyEffect effect;
  std::string_view about;  // what it is; of kOneValue: why others are refused, and what to write
  // Of kApplied: sets the key. Of kOneValue: false for a refused value.
  bool (*read)(const config::Value& value, DataConfig& config) = nullptr;
  bool null_counts = false;  // null is a value, not an absent key
};
std::span<const DataKey> data_config_keys();

}  // namespace loom::multimodal
