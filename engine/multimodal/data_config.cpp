#include "engine/multimodal/data_config.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <utility>

#include "engine/config/document.h"
#include "engine/config/section.h"
#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/core/spelling.h"

namespace loom::multimodal {
namespace {

using config::Value;
using Names = std::vector<std::string_view>;

constexpr std::string_view kBuiltTypes[] = {"huggingface", "multimodal"};
constexpr std::string_view kOtherTypes[] = {"t2v",   "i2v",         "t2i",         "dt2v",   "feature",
                                            "audio", "deepseekvl2", "rewardvideo", "lumina", "bagel"};

// Reads the keys of mappings by the table.
class Reader {
 public:
  Reader(std::string file, DataConfig& config) : file_(std::move(file)), config_(config) {}

  // `parts`: keys of the mapping that are mappings or have been read.
  void read(const Value& mapping, KeySection section, const Names& parts = {}) {
    if (!mapping.is_mapping()) mapping.refuse("a mapping of keys");
    for (const Value& member : mapping.items()) {
      if (std::ranges::find(parts, member.key()) != parts.end()) continue;
      read_key(member, key_of(member, section, parts));
    }
  }

  const Value& part(const Value& mapping, std::string_view key, std::string_view advice) const {
    if (!mapping.is_mapping()) mapping.refuse("a mapping of keys");
    const Value* found = mapping.find(key);
    if (found != nullptr && !found->is_null()) return *found;
    const std::string path = mapping.path().empty() ? file_ : fmt::format("{}: {}", file_, mapping.path());
    config_error("{} has no {}; {}", path, key, advice);
  }

  // One notice of all keys without effect.
  void finish() {
    if (without_effect_.empty()) return;
    config_.notices.push_back(
        fmt::format("{}: without effect here: {}", escaped(file_), fmt::join(without_effect_, ", ")));
  }

 private:
  static const DataKey& key_of(const Value& member, KeySection section, const Names& parts) {
    Names known = parts;
    for (const DataKey& key : data_config_keys()) {
      if (key.section != section) continue;
      if (key.name == member.key()) return key;
      known.push_back(key.name);
    }
    config::refuse_key(member, known);
  }

  void read_key(const Value& member, const DataKey& key) {
    if (member.is_null() && !key.null_counts) return;
    if (key.effect == KeyEffect::kNone) {
      without_effect_.push_back(member.path());
    } else if (!key.read(member, config_)) {
      config_error("{}: {} is {}: {}", member.where(), member.path(), member.shown(), key.about);
    }
  }

  std::string file_;
  DataConfig& config_;
  std::vector<std::string> without_effect_;
};

DatasetType type_of(const Value& value) {
  const std::string& text = value.scalar();
  if (value.is_text() && text == "huggingface") return DatasetType::kHuggingFace;
  if (value.is_text() && text == "multimodal") return DatasetType::kMultimodal;
  if (value.is_text() && std::ranges::find(kOtherTypes, text) != std::end(kOtherTypes)) {
    config_error("{}: {} is {}, which is not built; use {}", value.where(), value.path(), text,
                 fmt::join(kBuiltTypes, " or "));
  }
  std::vector<std::string> known(std::begin(kBuiltTypes), std::end(kBuiltTypes));
  known.insert(known.end(), std::begin(kOtherTypes), std::end(kOtherTypes));
  const auto nearest = value.is_text() ? nearest_spelling(text, known) : std::nullopt;
  config_error("{}: {} is {}, which is no type of data; {}built are {}", value.where(), value.path(), value.shown(),
               nearest ? fmt::format("did you mean {}? ", *nearest) : "", fmt::join(kBuiltTypes, " and "));
}

void read_attr(const Value& dataset, Reader& reader, DataConfig& config) {
  const Value* attr = dataset.find("attr");
  if (attr == nullptr || attr->is_null()) return;
  reader.read(*attr, KeySection::kAttr);
  if (config.attr.user_tag && config.attr.user_tag == config.attr.assistant_tag) {
    attr->refuse("a user_tag that differs from assistant_tag");
  }
}

void check_text(const Value& basic, const DataConfig& config) {
  const TextOptions& text = config.text;
  if (text.dataset.empty()) {
    config_error("{}: {} has no dataset; name its files, separated by commas", config.where, basic.path());
  }
  if (!text.enable_thinking && text.template_name != "qwen3_vl_nothink") {
    config_error(
        "{}: {}.enable_thinking is false: it has an effect on templates that reason, which are not built; write true, or "
        "template: qwen3_vl_nothink",
        config.where, basic.path());
  }
  if (text.mask_history && text.train_on_prompt) {
    basic.refuse("train_on_prompt or mask_history, not both: one learns questions, the other the last answer alone");
  }
  if (config.pictures.image_min_pixels > config.pictures.image_max_pixels ||
      config.pictures.video_min_pixels > config.pictures.video_max_pixels) {
    config_error("{}: preprocess_parameters have a min_pixels above its max_pixels; exchange them", config.where);
  }
}

void read_hugging_face(const Value& dataset, Reader& reader, DataConfig& config) {
  const Value& basic = reader.part(dataset, "basic_parameters", "write it: it names the data");
  const Value& preprocess = reader.part(dataset, "preprocess_parameters", "write it: it names the tokenizer");
  reader.read(dataset, KeySection::kHuggingFaceDataset,
              {"dataset_type", "basic_parameters", "preprocess_parameters", "attr"});
  reader.read(basic, KeySection::kHuggingFaceBasic);
  reader.read(preprocess, KeySection::kHuggingFacePreprocess);
  reader.part(preprocess, "model_name_or_path", "write the folder with tokenizer.json");
  read_attr(dataset, reader, config);
  check_text(basic, config);
}

void check_internvl(const Value& dataset, const InternvlOptions& options) {
  if (options.image_size % options.patch_size != 0) {
    dataset.refuse(fmt::format("an image_size that is a multiple of patch_size, which is {}", options.patch_size));
  }
  const double merge = 1 / options.down_sample_ratio;
  const double patches = static_cast<double>(options.image_size / options.patch_size);
  if (merge != std::floor(merge) || std::fmod(patches, merge) != 0) {
    dataset.refuse(fmt::format("a down_sample_ratio of 1 / n whose n divides the {} patches of a side", patches));
  }
  if (options.min_dynamic_patch > options.max_dynamic_patch) {
    dataset.refuse("a min_dynamic_patch that is at most max_dynamic_patch");
  }
}

void read_internvl(const Value& dataset, Reader& reader, DataConfig& config) {
  const Value& basic = reader.part(dataset, "basic_parameters", "write it: it names the data");
  const Value& preprocess = reader.part(dataset, "preprocess_parameters", "write it: it names the steps of pictures");
  const Value& tokenizer = reader.part(dataset, "tokenizer_config", "write it: it names the tokenizer");
  reader.read(dataset, KeySection::kInternvlDataset,
              {"dataset_type", "basic_parameters", "preprocess_parameters", "tokenizer_config"});
  reader.read(preprocess, KeySection::kInternvlPreprocess);
  reader.read(tokenizer, KeySection::kInternvlTokenizer);
  reader.part(tokenizer, "from_pretrained", "write the folder with tokenizer.json");
  for (const Value& entry : basic.is_list() ? std::span(basic.items()) : std::span(&basic, 1)) {
    config.internvl.files.emplace_back();  // which the keys fill
    reader.part(entry, "data_path", "write the file of the data set");
    reader.read(entry, KeySection::kInternvlBasic);
  }
  if (config.internvl.files.empty()) basic.refuse("a data set, or a list of at least one");
  check_internvl(dataset, config.internvl);
}

void read_loader(const Value& loader, Reader& reader, DataConfig& config, const DataJob& job) {
  reader.part(loader, "dataloader_mode", "write sampler");
  reader.part(loader, "sampler_type", "write BaseRandomBatchSampler; the default of others is not built");
  reader.read(loader, KeySection::kLoader, {"collate_param"});
  if (const Value* collate = loader.find("collate_param"); collate != nullptr && !collate->is_null()) {
    reader.read(*collate, KeySection::kCollate);
  }
  if (!config.loader.drop_last) {
    config_error("{}: {} has no drop_last: true, and BaseRandomBatchSampler drops the last batch; write it",
                 config.where, loader.path());
  }
  if (config.loader.batch_size && *config.loader.batch_size != job.micro_batch_size) {
    config.notices.push_back(fmt::format("{}: {}.batch_size is {}, and --micro-batch-size is {}, which counts",
                                         config.where, loader.path(), *config.loader.batch_size, job.micro_batch_size));
  }
}

}  // namespace

std::string_view path_of(KeySection section) {
  switch (section) {
    case KeySection::kHuggingFaceDataset:
    case KeySection::kInternvlDataset:
      return "dataset_param";
    case KeySection::kHuggingFaceBasic:
    case KeySection::kInternvlBasic:
      return "dataset_param.basic_parameters";
    case KeySection::kHuggingFacePreprocess:
    case KeySection::kInternvlPreprocess:
      return "dataset_param.preprocess_parameters";
    case KeySection::kAttr:
      return "dataset_param.attr";
    case KeySection::kInternvlTokenizer:
      return "dataset_param.tokenizer_config";
    case KeySection::kLoader:
      return "dataloader_param";
    case KeySection::kCollate:
      return "dataloader_param.collate_param";
  }
  require(false, "a section of keys");
  return "";
}

DataConfig read_data_config(const Value& node, const DataJob& job) {
  DataConfig config;
  config.where = escaped(node.place().key.file);
  Reader reader(config.where, config);
  const Value& dataset = reader.part(node, "dataset_param", "write it: it describes the data");
  const Value& loader = reader.part(node, "dataloader_param", "write it: it describes the order of samples");
  for (const Value& member : node.items()) {
    constexpr std::string_view kKnown[] = {"dataset_param", "dataloader_param"};
    if (std::ranges::find(kKnown, member.key()) == std::end(kKnown)) config::refuse_key(member, kKnown);
  }
  config.type = type_of(reader.part(dataset, "dataset_type", "write huggingface or multimodal"));
  if (config.type == DatasetType::kHuggingFace) {
    read_hugging_face(dataset, reader, config);
  } else {
    read_internvl(dataset, reader, config);
  }
  if (!config.text.cutoff_is_given && job.seq_length) config.text.cutoff_len = *job.seq_length;
  read_loader(loader, reader, config, job);
  reader.finish();
  return config;
}

DataConfig read_data_config_file(const std::filesystem::path& path, const DataJob& job) {
  const std::string text = config::read_text(path, "a data.json");
  const bool is_yaml = path.extension() == ".yaml" || path.extension() == ".yml";
  const config::Value file =
      is_yaml ? config::parse_yaml(text, path.string()) : config::parse_json(text, path.string());
  const config::Value* section = is_yaml ? file.find("data") : nullptr;
  return read_data_config(section != nullptr ? *section : file, job);
}

}  // namespace loom::multimodal
