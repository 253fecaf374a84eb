#include "engine/data/token_batches.h"

#include <algorithm>
#include <fmt/ranges.h>
#include <memory>

#include "engine/core/checked.h"
#include "engine/core/error.h"
#include "engine/data/gpt_data.h"
#include "engine/nn/functional.h"

namespace loom::data {
namespace {

constexpr std::int32_t kNotScored = -100;

// What a sample has besides tokens and targets.
struct RowParts {
  std::int64_t seq_length = 0;
  bool position_ids = false;
  bool segments = false;
};

template <class Samples>
class Rows {
 public:
  Rows(const Samples& samples, const RowParts& parts, std::int64_t count)
      : samples_(samples),
        parts_(parts),
        inputs_(Tensor::host({count, parts.seq_length}, DType::kI32, "input_ids")),
        targets_(Tensor::host({count, parts.seq_length}, DType::kI32, "targets")),
        mask_(static_cast<std::size_t>(parts.seq_length)) {
    if (parts.position_ids) positions_ = Tensor::host({count, parts.seq_length}, DType::kI32, "position_ids");
    if (parts.segments) attend_from_.resize(mask_.size());
  }

  void add(std::int64_t sample) {
    const auto row_of = [&](const Tensor& tensor) -> std::span<std::int32_t> {
      if (!tensor.defined()) return {};
      return {tensor.data<std::int32_t>() + row_ * parts_.seq_length, mask_.size()};
    };
    const std::span<std::int32_t> targets = row_of(targets_);
    samples_.fill(sample % samples_.sample_count(), {.tokens = row_of(inputs_),
                                                     .labels = targets,
                                                     .loss_mask = mask_,
                                                     .position_ids = row_of(positions_),
                                                     .attend_from = attend_from_});
    for (std::size_t i = 0; i < mask_.size(); ++i) {
      if (mask_[i] == 0) targets[i] = kNotScored;
    }
    add_ends();
    ++row_;
  }

  Batch batch() && {
    Batch batch{{{"input_ids", inputs_}, {"targets", targets_}}};
    if (parts_.position_ids) batch.values.emplace_back("position_ids", positions_);
    if (parts_.segments) batch.values.emplace_back("actual_seq_len", std::move(ends_));
    return batch;
  }

 private:
  void add_ends() {
    std::int64_t end = row_ * parts_.seq_length;
    for (const std::int32_t length : segment_lengths(attend_from_)) {
      end += length;
      ends_.emplace_back(end);
    }
  }

  const Samples& samples_;
  const RowParts parts_;
  const Tensor inputs_, targets_;
  Tensor positions_;
  std::vector<float> mask_;
  std::vector<std::int32_t> attend_from_;
  nn::ValueList ends_;
  std::int64_t row_ = 0;
};

template <class Samples>
DataLoader loader_of(std::shared_ptr<const Samples> samples, const RowParts& parts) {
  return [samples = std::move(samples), parts](std::span<const std::int64_t> numbers) {
    Rows<Samples> rows(*samples, parts, static_cast<std::int64_t>(numbers.size()));
    for (const std::int64_t number : numbers) rows.add(number);
    return std::move(rows).batch();
  };
}

void check_ids(const DataOptions& options, const TokenIds& ids) {
  if (ids.eod >= 0) return;
  const std::pair<bool, const char*> flags[] = {{options.reset_position_ids, "--reset-position-ids"},
                                                {options.reset_attention_mask, "--reset-attention-mask"},
                                                {options.eod_mask_loss, "--eod-mask-loss"}};
  for (const auto& [given, flag] : flags) {
    if (given) {
      config_error(
          "{} needs the id that ends a document, and no tokenizer gives one; give --tokenizer-name-or-path DIR "
          "with an eos_token",
          flag);
    }
  }
}

std::vector<std::string> words_of(const std::vector<std::filesystem::path>& paths) {
  std::vector<std::string> words;
  for (const auto& path : paths) words.push_back(path.string());
  return words;
}

GptDataOptions gpt_options(const DataOptions& options, const TokenIds& ids, const SampleCounts& counts) {
  GptDataOptions gpt{.cache_path = options.data_cache_path};
  if (options.split) gpt.split = *options.split;
  gpt.sample = {.seq_length = options.seq_length,
                .seed = options.seed,
                .eod = ids.eod,
                .pad = ids.pad,
                .special_ids = ids.others,
                .reset_position_ids = options.reset_position_ids,
                .reset_attention_mask = options.reset_attention_mask,
                .eod_mask_loss = options.eod_mask_loss};
  if (!options.data_path.empty()) gpt.blend = parse_blend("--data-path", words_of(options.data_path));
  for (const DataSplit part : kDataSplits) {
    const std::size_t at = place_of(part);
    const auto& words = options.part_data_path[at];
    if (!words.empty()) gpt.blends[at] = parse_blend(fmt::format("--{}-data-path", name_of(part)), words);
    gpt.samples[at] = counts[at];
    gpt.wanted[at] = counts[at] > 0;
  }
  return gpt;
}

std::int64_t product(std::string_view flag, std::int64_t count, std::int64_t samples) {
  if (const auto all = checked_multiply(count, samples)) return *all;
  config_error("{} asks for {} times {} samples, which 64 bits do not hold; give less", flag, count, samples);
}

// "12345 samples of 128 tokens from 2 pairs for train, 320 for valid"
std::string about(const GptData& data, std::int64_t seq_length) {
  std::string text;
  for (const DataSplit part : kDataSplits) {
    const auto& samples = data[place_of(part)];
    if (!samples) continue;
    const std::size_t pairs = samples->sets().size();
    text += text.empty() ? fmt::format("{} samples of {} tokens from {} pair{} for {}", samples->sample_count(),
                                       seq_length, pairs, pairs == 1 ? "" : "s", name_of(part))
                         : fmt::format(", {} for {}", samples->sample_count(), name_of(part));
  }
  return text;
}

}  // namespace

SampleCounts sample_counts(const RunLength& run) {
  const std::int64_t batch = run.global_batch_size;
  const std::int64_t train =
      run.train_samples > 0 ? run.train_samples : product("--train-iters", run.train_iters, batch);
  const std::int64_t evaluation = product("--eval-iters", run.eval_iters, batch);
  return {train, product("--eval-interval", run.train_iters / run.eval_interval + 1, evaluation), evaluation};
}

DataLoaders token_data_loaders(const DataOptions& options, const TokenIds& ids, const SampleCounts& counts) {
  check_ids(options, ids);
  GptData data = open_gpt_data(gpt_options(options, ids, counts));
  const RowParts parts{options.seq_length, options.reset_position_ids, options.reset_attention_mask};
  DataLoaders loaders{.count_tokens = count_targets, .about = about(data, options.seq_length)};
  const auto loader = [&](DataSplit part) -> DataLoader {
    auto& samples = data[place_of(part)];
    if (!samples) return {};
    return loader_of(std::make_shared<const BlendedDataset>(std::move(*samples)), parts);
  };
  loaders.train = loader(DataSplit::kTrain);
  loaders.valid = loader(DataSplit::kValid);
  loaders.test = loader(DataSplit::kTest);
  if (!loaders.train) {
    config_error("{}: no sample for train; give it a share in --split, or --train-data-path",
                 options.data_path.empty() ? "--train-data-path" : "--data-path");
  }
  return loaders;
}

TokenCounts count_targets(const Batch& batch) {
  const Tensor& targets = batch["targets"];
  const std::int64_t all = targets.numel();
  if (targets.is_meta() || targets.raw() == nullptr) return {all, all};
  const auto* first = targets.data<std::int32_t>();
  return {all - std::count(first, first + all, kNotScored), all};
}
}  // namespace loom::data
