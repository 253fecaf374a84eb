#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "engine/core/error.h"
#include "engine/multimodal/data_config.h"

namespace loom::multimodal {
namespace {

using config::Value;
using enum KeySection;

// --- values

bool read_bool(const Value& value) {
  if (const auto flag = value.boolean()) return *flag;
  value.refuse("true or false");
}

template <std::int64_t kLeast>
std::int64_t read_whole(const Value& value) {
  const auto number = value.whole();
  if (number && *number >= kLeast && *number <= std::numeric_limits<std::int32_t>::max()) return *number;
  value.refuse(kLeast == 0 ? "a whole number from 0 to 2147483647" : "a whole number from 1 to 2147483647");
}

std::string read_text(const Value& value) {
  if (value.is_text() && !value.scalar().empty()) return value.scalar();
  value.refuse("a text");
}

double read_above_zero(const Value& value) {
  const auto number = value.number();
  if (number && std::isfinite(*number) && *number > 0) return *number;
  value.refuse("a number above 0");
}

double read_share(const Value& value) {
  const auto number = value.number();
  if (number && *number >= 0 && *number < 1) return *number;
  value.refuse("a number from 0 to below 1");
}

DatasetAttr::Name read_name(const Value& value) {
  if (value.is_null()) return std::nullopt;
  return read_text(value);
}

std::array<double, 3> read_colours(const Value& value) {
  std::array<double, 3> colours{};
  if (!value.is_list() || value.items().size() != colours.size()) value.refuse("a list of three numbers");
  for (std::size_t i = 0; i < colours.size(); ++i) colours[i] = read_above_zero(value.items()[i]);
  return colours;
}

// --- rows

template <auto Part, auto Member, auto Read>
constexpr DataKey applied(KeySection section, std::string_view name, std::string_view about) {
  return {section, name, KeyEffect::kApplied, about, [](const Value& value, DataConfig& config) {
            (config.*Part).*Member = Read(value);
            return true;
          }};
}

constexpr DataKey one_value(KeySection section, std::string_view name, std::string_view about,
                            bool (*allowed)(const Value&, DataConfig&)) {
  return {section, name, KeyEffect::kOneValue, about, allowed};
}

constexpr DataKey no_effect(KeySection section, std::string_view name, std::string_view about) {
  return {section, name, KeyEffect::kNone, about};
}

// A tag or column of attr.
template <auto Member>
constexpr DataKey name_of_attr(std::string_view name, std::string_view about) {
  DataKey key{kAttr, name, KeyEffect::kApplied, about, [](const Value& value, DataConfig& config) {
                config.attr.*Member = read_name(value);
                return true;
              }};
  key.null_counts = true;
  return key;
}

bool is_false(const Value& value, DataConfig&) { return !read_bool(value); }
bool never(const Value&, DataConfig&) { return false; }
bool is_eight(const Value& value, DataConfig&) { return read_whole<1>(value) == 8; }

template <const char* const* kWords>
bool is_word(const Value& value, DataConfig&) {
  const std::string text = read_text(value);
  for (const char* const* word = kWords; *word != nullptr; ++word) {
    if (text == *word) return true;
  }
  return false;
}
constexpr const char* kSft[] = {"sft", nullptr};
constexpr const char* kSharegpt[] = {"sharegpt", nullptr};
constexpr const char* kSampler[] = {"sampler", nullptr};
constexpr const char* kRandomBatch[] = {"BaseRandomBatchSampler", nullptr};
constexpr const char* kHub[] = {"hf", nullptr};
constexpr const char* kAutoTokenizer[] = {"AutoTokenizer", nullptr};
constexpr const char* kCollators[] = {"qwen2vl", "qwen3vl", "internvl", nullptr};

bool read_batch_size(const Value& value, DataConfig& config) {
  config.loader.batch_size = read_whole<1>(value);
  return true;
}

bool read_cutoff(const Value& value, DataConfig& config) {
  config.text.cutoff_len = read_whole<1>(value);
  config.text.cutoff_is_given = true;
  return true;
}

bool read_pad_id(const Value& value, DataConfig& config) {
  config.loader.pad_id = static_cast<std::int32_t>(read_whole<0>(value));
  return true;
}

template <auto Member, auto Read>
bool read_video(const Value& value, DataConfig& config) {
  config.pictures.video.*Member = Read(value);
  return true;
}

// --- the data sets of InternVL: of the one that is being read

bool read_data_path(const Value& value, DataConfig& config) {
  config.internvl.files.back().data_path = read_text(value);
  return true;
}

bool read_data_folder(const Value& value, DataConfig& config) {
  config.internvl.files.back().data_folder = read_text(value);
  return true;
}

bool read_repeat_time(const Value& value, DataConfig& config) {
  constexpr double kMost = 1'000'000;
  const double times = read_above_zero(value);
  if (times > 1 && (times != std::floor(times) || times > kMost)) {
    value.refuse("a share below 1, or a whole number up to 1000000");
  }
  config.internvl.files.back().repeat_time = times;
  return true;
}

// --- the pipeline of InternVL's pictures: a list of {trans_type, param}

void only_keys(const Value& mapping, std::initializer_list<std::string_view> names) {
  for (const Value& member : mapping.items()) {
    bool known = false;
    for (const std::string_view name : names) known = known || member.key() == name;
    if (!known) config_error("{}: {} is not built; take it out", member.where(), member.path());
  }
}

void read_resize(const Value& param, DataConfig& config) {
  only_keys(param, {"size", "interpolation"});
  if (const Value* size = param.find("size")) {
    const bool list = size->is_list();
    if (list && size->items().size() != 2) size->refuse("a list of two numbers, both image_size");
    for (std::size_t i = 0; i < (list ? 2U : 1U); ++i) {
      const Value& side = list ? size->items()[i] : *size;
      if (side.whole() == config.internvl.image_size) continue;
      config_error("{}: {} is {}, and image_size is {}; write the same number", side.where(), side.path(), side.shown(),
                   config.internvl.image_size);
    }
  }
  const Value* filter = param.find("interpolation");
  if (filter == nullptr || (filter->is_text() && (filter->scalar() == "BICUBIC" || filter->scalar() == "bicubic"))) {
    return;
  }
  filter->refuse("BICUBIC, the only one that is built");
}

void read_normalisation(const Value& param, DataConfig& config) {
  only_keys(param, {"mean", "std"});
  if (const Value* mean = param.find("mean")) config.internvl.mean = read_colours(*mean);
  if (const Value* deviation = param.find("std")) config.internvl.std = read_colours(*deviation);
}

void read_step(const Value& step, DataConfig& config) {
  const Value* type = step.is_mapping() ? step.find("trans_type") : nullptr;
  if (type == nullptr || !type->is_text()) step.refuse("a mapping of trans_type and param");
  only_keys(step, {"trans_type", "param"});
  static const Value none(Value::Kind::kMapping, "", "", {});
  const Value* given = step.find("param");
  const Value& param = given == nullptr || given->is_null() ? none : *given;
  if (!param.is_mapping()) param.refuse("a mapping");
  if (type->scalar() == "Pad2Square") {
    only_keys(param, {"mean"});
    if (const Value* mean = param.find("mean")) config.internvl.mean = read_colours(*mean);
    config.internvl.pad_to_square = true;
  } else if (type->scalar() == "Resize") {
    read_resize(param, config);
  } else if (type->scalar() == "norm_fun") {
    read_normalisation(param, config);
  } else if (type->scalar() != "ToTensor") {
    type->refuse("Pad2Square, Resize, ToTensor or norm_fun, which are built");
  }
}

bool read_pipeline(const Value& value, DataConfig& config) {
  if (!value.is_mapping()) value.refuse("a mapping of image to a list of steps");
  for (const Value& kind : value.items()) {
    if (kind.key() == "video") continue;  // videos of InternVL are refused where a sample has one
    if (kind.key() != "image") config_error("{}: {} is not built; take it out", kind.where(), kind.path());
    if (!kind.is_list()) kind.refuse("a list of steps");
    for (const Value& step : kind.items()) read_step(step, config);
  }
  return true;
}

// --- the table

using Text = TextOptions;
using Picture = PictureOptions;
using Internvl = InternvlOptions;
using Loader = LoaderOptions;
constexpr auto kText = &DataConfig::text;
constexpr auto kPictures = &DataConfig::pictures;
constexpr auto kInternvl = &DataConfig::internvl;
constexpr auto kOptions = &DataConfig::loader;

constexpr DataKey kKeys[] = {
    // huggingface
    applied<kText, &Text::template_name, read_text>(kHuggingFaceBasic, "template",
                                                    "qwen2vl (also of Qwen2.5-VL), qwen3_vl or qwen3_vl_nothink"),
    applied<kText, &Text::chat_template, read_text>(
        kHuggingFaceBasic, "chat_template",
        "path of a Jinja template; wins over template; without both, the model's own"),
    applied<kText, &Text::dataset_dir, read_text>(kHuggingFaceBasic, "dataset_dir", "folder of data sets and pictures"),
    applied<kText, &Text::dataset, read_text>(kHuggingFaceBasic, "dataset", "files, separated by commas"),
    {kHuggingFaceBasic, "cutoff_len", KeyEffect::kApplied, "tokens of a sample; the rest is cut", read_cutoff},
    applied<kText, &Text::train_on_prompt, read_bool>(kHuggingFaceBasic, "train_on_prompt", "questions are learnt too"),
    applied<kText, &Text::mask_history, read_bool>(kHuggingFaceBasic, "mask_history",
                                                   "the last answer alone is learnt"),
    applied<kText, &Text::max_samples, read_whole<1>>(kHuggingFaceBasic, "max_samples", "the first rows of all files"),
    applied<kText, &Text::val_dataset, read_text>(kHuggingFaceBasic, "val_dataset", "files of evaluation"),
    applied<kText, &Text::val_max_samples, read_whole<1>>(kHuggingFaceBasic, "val_max_samples", "their first rows"),
    applied<kText, &Text::val_rate, read_share>(kHuggingFaceBasic, "val_rate",
                                                "share kept for evaluation; val_dataset wins"),
    applied<kText, &Text::enable_thinking, read_bool>(kHuggingFaceBasic, "enable_thinking",
                                                      "false needs template qwen3_vl_nothink"),
    one_value(kHuggingFaceBasic, "streaming",
              "needs no size of the data, which the order of samples is made of; write false", is_false),
    one_value(kHuggingFaceBasic, "packing", "packing of samples with pictures is not built; write false", is_false),
    one_value(kHuggingFaceBasic, "neat_packing", "packing of samples with pictures is not built; write false",
              is_false),
    one_value(kHuggingFaceBasic, "tool_format", "calls of functions are not built; take it out", never),
    one_value(kHuggingFaceBasic, "stage", "pictures are built for supervised fine-tuning only; write sft",
              is_word<kSft>),
    no_effect(kHuggingFaceBasic, "cache_dir", "nothing is cached"),
    no_effect(kHuggingFaceBasic, "overwrite_cache", "nothing is cached"),
    no_effect(kHuggingFaceBasic, "preprocessing_batch_size", "samples are encoded one by one"),
    no_effect(kHuggingFaceBasic, "preprocessing_num_workers", "the ranks' threads encode"),
    no_effect(kHuggingFaceBasic, "preprocess_on_fly", "samples are always encoded when they are read"),
    no_effect(kHuggingFaceBasic, "async_preprocess", "samples are always encoded when they are read"),
    no_effect(kHuggingFaceBasic, "async_preprocess_buffer_size", "samples are always encoded when they are read"),
    no_effect(kHuggingFaceBasic, "async_preprocess_workers", "samples are always encoded when they are read"),

    applied<kPictures, &Picture::model_name_or_path, read_text>(kHuggingFacePreprocess, "model_name_or_path",
                                                                "folder with tokenizer.json"),
    applied<kPictures, &Picture::image_max_pixels, read_whole<1>>(kHuggingFacePreprocess, "image_max_pixels",
                                                                  "larger pictures are made smaller"),
    applied<kPictures, &Picture::image_min_pixels, read_whole<0>>(kHuggingFacePreprocess, "image_min_pixels",
                                                                  "smaller pictures are made larger"),
    applied<kPictures, &Picture::video_max_pixels, read_whole<1>>(kHuggingFacePreprocess, "video_max_pixels",
                                                                  "the same of frames"),
    applied<kPictures, &Picture::video_min_pixels, read_whole<0>>(kHuggingFacePreprocess, "video_min_pixels",
                                                                  "the same of frames"),
    {kHuggingFacePreprocess, "video_fps", KeyEffect::kApplied, "frames a second of a folder of frames",
     read_video<&VideoOptions::fps, read_above_zero>},
    {kHuggingFacePreprocess, "video_maxlen", KeyEffect::kApplied, "frames of a video, at most",
     read_video<&VideoOptions::maxlen, read_whole<1>>},
    one_value(kHuggingFacePreprocess, "split_special_tokens", "the tokens of pictures would be split too; write false",
              is_false),
    one_value(kHuggingFacePreprocess, "image_do_pan_and_scan", "is of another model, which is not built; write false",
              is_false),
    one_value(kHuggingFacePreprocess, "crop_to_patches", "is of another model, which is not built; write false",
              is_false),
    one_value(kHuggingFacePreprocess, "use_audio_in_video", "audio is not built; write false", is_false),
    no_effect(kHuggingFacePreprocess, "use_fast_tokenizer", "tokenizer.json is read either way"),
    no_effect(kHuggingFacePreprocess, "image_resolution", "image_max_pixels and image_min_pixels decide"),
    no_effect(kHuggingFacePreprocess, "video_resolution", "video_max_pixels and video_min_pixels decide"),
    no_effect(kHuggingFacePreprocess, "audio_sampling_rate", "there is no audio"),
    no_effect(kHuggingFacePreprocess, "trust_remote_code", "no code of a model is run"),

    one_value(kAttr, "ranking", "preferences with pictures are not built; write false", is_false),
    one_value(kAttr, "formatting",
              "alpaca, openai and multimodal_tool are not built; write sharegpt, and name the "
              "columns and tags",
              is_word<kSharegpt>),
    name_of_attr<&DatasetAttr::system>("system", "column of the system text"),
    name_of_attr<&DatasetAttr::images>("images", "column of the pictures' paths"),
    name_of_attr<&DatasetAttr::videos>("videos", "column of the videos' paths"),
    name_of_attr<&DatasetAttr::audios>("audios", "column that must be empty"),
    name_of_attr<&DatasetAttr::tools>("tools", "column that must be empty"),
    applied<&DataConfig::attr, &DatasetAttr::messages, read_text>(kAttr, "messages", "column of the conversation"),
    applied<&DataConfig::attr, &DatasetAttr::role_tag, read_text>(kAttr, "role_tag", "key of a message's role"),
    applied<&DataConfig::attr, &DatasetAttr::content_tag, read_text>(kAttr, "content_tag", "key of its text"),
    name_of_attr<&DatasetAttr::user_tag>("user_tag", "role of questions"),
    name_of_attr<&DatasetAttr::assistant_tag>("assistant_tag", "role of answers"),
    name_of_attr<&DatasetAttr::observation_tag>("observation_tag", "role of results of tools"),
    name_of_attr<&DatasetAttr::function_tag>("function_tag", "role that is refused"),
    name_of_attr<&DatasetAttr::system_tag>("system_tag", "role of the system text"),
    one_value(kAttr, "chosen", "preferences with pictures are not built; write null", never),
    one_value(kAttr, "rejected", "preferences with pictures are not built; write null", never),
    no_effect(kAttr, "prompt", "is read with formatting alpaca"),
    no_effect(kAttr, "query", "is read with formatting alpaca"),
    no_effect(kAttr, "response", "is read with formatting alpaca"),
    no_effect(kAttr, "history", "is read with formatting alpaca"),

    // multimodal
    {kInternvlBasic, "data_path", KeyEffect::kApplied, "file of a data set; basic_parameters may be a list of them",
     read_data_path},
    {kInternvlBasic, "data_folder", KeyEffect::kApplied, "folder of its pictures", read_data_folder},
    {kInternvlBasic, "repeat_time", KeyEffect::kApplied, "below 1 its first samples, above so many times all",
     read_repeat_time},
    applied<kInternvl, &Internvl::template_name, read_text>(kInternvlDataset, "template_name", "internvl2_5"),
    applied<kInternvl, &Internvl::image_size, read_whole<1>>(kInternvlDataset, "image_size",
                                                             "side of a tile in pixels"),
    applied<kInternvl, &Internvl::patch_size, read_whole<1>>(kInternvlDataset, "patch_size", "side of a patch"),
    applied<kInternvl, &Internvl::down_sample_ratio, read_above_zero>(kInternvlDataset, "down_sample_ratio",
                                                                      "tokens to patches along a side; 1 / n"),
    applied<kInternvl, &Internvl::dynamic_image_size, read_bool>(kInternvlDataset, "dynamic_image_size",
                                                                 "pictures are cut into tiles"),
    applied<kInternvl, &Internvl::use_thumbnail, read_bool>(kInternvlDataset, "use_thumbnail",
                                                            "the whole picture behind several tiles"),
    applied<kInternvl, &Internvl::min_dynamic_patch, read_whole<1>>(kInternvlDataset, "min_dynamic_patch",
                                                                    "tiles of a picture, at least"),
    applied<kInternvl, &Internvl::max_dynamic_patch, read_whole<1>>(kInternvlDataset, "max_dynamic_patch",
                                                                    "tiles of a picture, at most"),
    no_effect(kInternvlDataset, "group_by_length", "pads samples alike, which the collator does here"),
    no_effect(kInternvlDataset, "use_text_processer", "texts are always encoded"),
    no_effect(kInternvlDataset, "is_multimodal", "samples without pictures are read too"),
    no_effect(kInternvlDataset, "min_num_frame", "videos of InternVL are refused"),
    no_effect(kInternvlDataset, "max_num_frame", "videos of InternVL are refused"),
    no_effect(kInternvlDataset, "sampling_method", "videos of InternVL are refused"),
    {kInternvlPreprocess, "train_pipeline", KeyEffect::kApplied, "image: steps Pad2Square, Resize, ToTensor, norm_fun",
     read_pipeline},
    no_effect(kInternvlPreprocess, "image_reader_type", "one reader reads all pictures"),
    no_effect(kInternvlPreprocess, "video_reader_type", "videos of InternVL are refused"),
    applied<kInternvl, &Internvl::tokenizer, read_text>(kInternvlTokenizer, "from_pretrained",
                                                        "folder with tokenizer.json"),
    one_value(kInternvlTokenizer, "hub_backend", "tokenizers are folders of Hugging Face's; write hf", is_word<kHub>),
    one_value(kInternvlTokenizer, "autotokenizer_name", "tokenizers are folders of Hugging Face's; write AutoTokenizer",
              is_word<kAutoTokenizer>),
    one_value(kInternvlTokenizer, "add_eos_token", "samples end as their template says; write false", is_false),
    no_effect(kInternvlTokenizer, "use_fast", "tokenizer.json is read either way"),
    no_effect(kInternvlTokenizer, "trust_remote_code", "no code of a model is run"),

    // dataloader_param
    one_value(kLoader, "dataloader_mode", "base and variable are not built; write sampler", is_word<kSampler>),
    one_value(kLoader, "sampler_type", "other samplers are not built; write BaseRandomBatchSampler",
              is_word<kRandomBatch>),
    applied<kOptions, &Loader::shuffle, read_bool>(kLoader, "shuffle", "each epoch in an order of its own"),
    applied<kOptions, &Loader::drop_last, read_bool>(kLoader, "drop_last", "must be true"),
    applied<kOptions, &Loader::data_sharding, read_bool>(kLoader, "data_sharding", "each rank keeps to its block"),
    {kLoader, "batch_size", KeyEffect::kApplied, "gives way to --micro-batch-size, with a notice", read_batch_size},
    one_value(kLoader, "group_frame", "samples in groups of like frames are not built; write false", is_false),
    one_value(kLoader, "group_resolution", "samples in groups of like sizes are not built; write false", is_false),
    one_value(kLoader, "group_data", "samples in groups of like lengths are not built; write false", is_false),
    no_effect(kLoader, "seed", "the sampler's order depends on the epoch alone"),
    no_effect(kLoader, "pin_memory", "batches are in host memory"),
    no_effect(kLoader, "num_workers", "the ranks' threads read samples"),
    no_effect(kLoader, "enable_preload", "the ranks' threads read samples"),
    no_effect(kLoader, "prefetch_factor", "the ranks' threads read samples"),
    no_effect(kLoader, "persistent_workers", "the ranks' threads read samples"),
    no_effect(kLoader, "priority_mode", "is of group_data"),
    no_effect(kLoader, "world_size", "the launcher's number of ranks counts"),

    one_value(kCollate, "model_name", "is a collator that is not built; write qwen2vl, qwen3vl or internvl",
              is_word<kCollators>),
    one_value(kCollate, "collator_id", "is a collator that is not built; write qwen2vl, qwen3vl or internvl",
              is_word<kCollators>),
    applied<kOptions, &Loader::ignore_pad_token_for_loss, read_bool>(kCollate, "ignore_pad_token_for_loss",
                                                                     "false: padding is learnt"),
    one_value(kCollate, "pad_to_multiple_of", "rows are padded to a multiple of 8; write that", is_eight),
    {kCollate, "pad_id", KeyEffect::kApplied, "the id of padding; the tokenizer's if it is not given", read_pad_id},
};

}  // namespace

std::span<const DataKey> data_config_keys() { return kKeys; }

}  // namespace loom::multimodal
