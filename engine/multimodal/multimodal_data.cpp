#include "engine/multimodal/multimodal_data.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <utility>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/multimodal/collator.h"
#include "engine/multimodal/sample_set.h"
#include "engine/multimodal/sampler.h"
#include "engine/multimodal/torch_permutation.h"
#include "engine/text/template/chat_template.h"

namespace loom::multimodal {
namespace {

// The template of a name, which fits the type of data.
void choose_template(const DataConfig& config, EncoderOptions& options) {
  const bool internvl = config.type == DatasetType::kMultimodal;
  const std::string& name = internvl ? config.internvl.template_name : config.text.template_name;
  const char* const allowed = internvl ? "internvl2_5" : "qwen2vl or qwen3_vl";
  if (name.empty()) config_error("{} is not given; write {}", options.where, allowed);
  if (internvl != (name == "internvl2_5")) {
    config_error("{} is {}, and dataset_type is {}; write {}", options.where, shown_text(name),
                 internvl ? "multimodal" : "huggingface", allowed);
  }
  options.template_name = name;
}

// chat_template wins over template, and without both the model's own counts.
EncoderOptions encoder_options(const DataConfig& config, std::int64_t merge_size) {
  EncoderOptions options{.cutoff_len = config.text.cutoff_len,
                         .train_on_prompt = config.text.train_on_prompt,
                         .mask_history = config.text.mask_history,
                         .merge_size = merge_size};
  const bool internvl = config.type == DatasetType::kMultimodal;
  options.where = fmt::format("{}: {}", config.where,
                              internvl ? "dataset_param.template_name" : "dataset_param.basic_parameters.template");
  const std::filesystem::path& folder = tokenizer_folder(config);
  if (internvl || (config.text.chat_template.empty() && !config.text.template_name.empty())) {
    choose_template(config, options);
  } else if (!config.text.chat_template.empty()) {
    options.chat_template =
        std::make_shared<const data::ChatTemplate>(data::ChatTemplate::from_file(config.text.chat_template, folder));
  } else if (data::ChatTemplate::is_in(folder)) {
    options.chat_template = std::make_shared<const data::ChatTemplate>(data::ChatTemplate::from_folder(folder));
  } else {
    config_error("{} is not given, and {} has no chat template; write qwen2vl or qwen3_vl", options.where,
                 escaped(folder.string()));
  }
  return options;
}

std::shared_ptr<const SampleTools> tools_of(const DataConfig& config, const MultimodalJob& job) {
  require(job.pictures != nullptr, "a reader of pictures is missing");
  const std::filesystem::path& folder = tokenizer_folder(config);
  const data::Tokenizer tokenizer = data::Tokenizer::from_file(folder);
  ConversationEncoder encoder(encoder_options(config, job.pictures->merge_size()), tokenizer,
                              data::read_special_ids(folder, tokenizer));
  WhitePicture white{job.pictures->white(kWhitePixels, kWhitePixels), {}};
  white.ids = encoder.picture_ids(white.patches.grid);
  Collator collator({.pad = config.loader.pad_id.value_or(encoder.pad()),
                     .multiple_of = job.length_multiple_of,
                     .learns_padding = !config.loader.ignore_pad_token_for_loss,
                     .has_grids = config.type == DatasetType::kHuggingFace,
                     .row_shape = job.pictures->row_shape()},
                    std::move(white));
  return std::shared_ptr<const SampleTools>(new SampleTools{job.pictures, std::move(encoder), EncoderPool(tokenizer),
                                                            config.pictures.video, std::move(collator)});
}

// The samples of a configuration, and the lines that warn of what was left out.
class Opener {
 public:
  Opener(const DataConfig& config, const MultimodalJob& job, std::vector<std::string>& warnings)
      : config_(config), seed_(job.seed), tools_(tools_of(config, job)), warnings_(warnings) {}

  // Training, and evaluation, which may be empty.
  std::pair<SampleSet, SampleSet> open() {
    SampleSet train(tools_), valid(tools_);
    if (config_.type == DatasetType::kMultimodal) {
      for (const InternvlFiles& files : config_.internvl.files) add_internvl(files, train);
      return {std::move(train), std::move(valid)};
    }
    add(config_.text.dataset, "dataset", config_.text.max_samples, train);
    if (config_.text.val_dataset.empty()) {
      if (config_.text.val_rate > 0) valid = take_share(train);
      return {std::move(train), std::move(valid)};
    }
    if (config_.text.val_rate > 0) {
      warnings_.push_back(fmt::format("{}: val_dataset counts, and val_rate has no effect", config_.where));
    }
    add(config_.text.val_dataset, "val_dataset", config_.text.val_max_samples, valid);
    return {std::move(train), std::move(valid)};
  }

 private:
  void add(const std::string& names, std::string_view key, std::optional<std::int64_t> most, SampleSet& set) {
    const std::string where = fmt::format("{}: dataset_param.basic_parameters.{}", config_.where, key);
    ConversationFiles files{.files = data_files(names, config_.text.dataset_dir, where),
                            .picture_folder = config_.text.dataset_dir,
                            .max_samples = most,
                            .attr = config_.attr};
    Conversations read = read_conversations(files);
    warn(read, files.picture_folder);
    add_fitting(std::move(read), 1, set);
  }

  void add_internvl(const InternvlFiles& entry, SampleSet& set) {
    ConversationFiles files{.files = {entry.data_path},
                            .picture_folder = entry.data_folder,
                            .attr = {.images = "image", .videos = "video"},
                            .adds_image = true};
    Conversations read = read_conversations(files);
    warn(read, files.picture_folder);
    std::int64_t times = 1;
    if (entry.repeat_time < 1) {
      const auto first = static_cast<std::int64_t>(static_cast<double>(read.rows) * entry.repeat_time);
      std::erase_if(read.samples, [&](const Conversation& sample) { return sample.number >= first; });
    } else {
      times = static_cast<std::int64_t>(entry.repeat_time);
    }
    add_fitting(std::move(read), times, set);
  }

  void add_fitting(Conversations read, std::int64_t times, SampleSet& set) {
    DropCounter drops = std::move(read.drops);
    set.add(std::move(read.samples), times, drops);
    for (std::string& line : drops.lines()) warnings_.push_back(std::move(line));
  }

  void warn(const Conversations& read, const std::filesystem::path& folder) {
    if (read.outside == 0) return;
    warnings_.push_back(fmt::format("{} path{} of pictures used as written, since not in {}; the first is {}",
                                    read.outside, read.outside == 1 ? " is" : "s are", escaped(folder.string()),
                                    shown_text(read.first_outside)));
  }

  SampleSet take_share(SampleSet& train) const {
    const std::int64_t all = train.count();
    const auto size = static_cast<std::int64_t>(std::ceil(static_cast<double>(all) * config_.text.val_rate));
    std::vector<std::int64_t> numbers = torch_permutation(all, seed_);
    numbers.resize(static_cast<std::size_t>(std::min(size, all)));
    std::ranges::sort(numbers);
    return train.split_off(numbers);
  }

  const DataConfig& config_;
  const std::uint64_t seed_;
  const std::shared_ptr<const SampleTools> tools_;
  std::vector<std::string>& warnings_;
};

std::string about(const MultimodalData& data, const SampleSet& train) {
  std::string text = fmt::format("{} conversations with {} pictures for train, {} in an epoch", data.train_samples,
                                 train.pictures(), data.epoch_samples);
  if (data.valid_samples > 0) text += fmt::format(", {} for valid", data.valid_samples);
  return text;
}

}  // namespace

const std::filesystem::path& tokenizer_folder(const DataConfig& config) {
  return config.type == DatasetType::kMultimodal ? config.internvl.tokenizer : config.pictures.model_name_or_path;
}

MultimodalData open_multimodal_data(const DataConfig& config, const MultimodalJob& job) {
  MultimodalData data;
  data.loaders.warnings = config.notices;
  auto [train_set, valid_set] = Opener(config, job, data.loaders.warnings).open();
  const auto train = std::make_shared<const SampleSet>(std::move(train_set));
  const auto valid = std::make_shared<const SampleSet>(std::move(valid_set));
  const auto sampler = std::make_shared<const RandomBatchSampler>(
      SamplerOptions{.where = fmt::format("{}: the data for train", config.where),
                     .samples = train->count(),
                     .micro_batch_size = job.micro_batch_size,
                     .data_ranks = job.data_ranks,
                     .micro_batches = job.micro_batches,
                     .shuffle = config.loader.shuffle,
                     .data_sharding = config.loader.data_sharding});
  data.train_samples = train->count();
  data.epoch_samples = sampler->active();
  data.valid_samples = valid->count();
  data.loaders.train = [train, sampler](std::span<const std::int64_t> numbers) {
    std::vector<std::int64_t> own;
    for (const std::int64_t number : numbers) own.push_back(sampler->index_of(number));
    return train->batch(own);
  };
  if (valid->count() > 0) {
    data.loaders.valid = [valid](std::span<const std::int64_t> numbers) {
      std::vector<std::int64_t> own;
      for (const std::int64_t number : numbers) own.push_back(number % valid->count());
      return valid->batch(own);
    };
  }
  data.loaders.place = [train, sampler](std::int64_t number) {
    return train->sample(sampler->index_of(number)).place();
  };
  data.loaders.count_tokens = count_tokens;
  data.loaders.about = about(data, *train);
  return data;
}

}  // namespace loom::multimodal
