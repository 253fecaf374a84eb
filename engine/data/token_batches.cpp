#include "engine/data/token_batches.h"

#include <algorithm>
#include <fmt/ranges.h>
#include <memory>

#include "engine/core/checked.h"
#include "engine/core/error.h"
#include "engine/data/gpt_data.h"
#include "engine/data/sft_data.h"
#include "engine/nn/functional.h"

namespace loom::data {
namespace {

constexpr std::int32_t kNotScored = -100;

// What a sample has besides tokens and targets.
struct RowParts {
  bool position_ids = false;
  bool segments = false;
};

// Rows of one micro-batch, all of one length.
class Rows {
 public:
  Rows(const RowParts& parts, std::int64_t count, std::int64_t length)
      : parts_(parts),
        length_(length),
        inputs_(Tensor::host({count, length}, DType::kI32, "input_ids")),
        targets_(Tensor::host({count, length}, DType::kI32, "targets")),
        mask_(static_cast<std::size_t>(length)) {
    if (parts.position_ids) positions_ = Tensor::host({count, length}, DType::kI32, "position_ids");
    if (parts.segments) attend_from_.resize(mask_.size());
  }

  template <class Samples>
  void add(const Samples& samples, std::int64_t sample) {
    const std::span<std::int32_t> targets = row_of(targets_);
    samples.fill(sample, {.tokens = row_of(inputs_),
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
  std::span<std::int32_t> row_of(const Tensor& tensor) const {
    if (!tensor.defined()) return {};
    return {tensor.data<std::int32_t>() + row_ * length_, mask_.size()};
  }

  void add_ends() {
    std::int64_t end = row_ * length_;
    for (const std::int32_t length : segment_lengths(attend_from_)) {
      end += length;
      ends_.emplace_back(end);
    }
  }

  const RowParts parts_;
  const std::int64_t length_;
  const Tensor inputs_, targets_;
  Tensor positions_;
  std::vector<float> mask_;
  std::vector<std::int32_t> attend_from_;
  nn::ValueList ends_;
  std::int64_t row_ = 0;
};

std::int64_t row_length(const BlendedDataset&, std::span<const std::int64_t>, const DataOptions& options) {
  return options.seq_length;
}
std::int64_t row_length(const SftDataset& samples, std::span<const std::int64_t> numbers, const DataOptions&) {
  return samples.padded_length(numbers);
}

// A data set that is shorter than the training begins again.
std::vector<std::int64_t> within(std::span<const std::int64_t> numbers, std::int64_t count) {
  std::vector<std::int64_t> samples;
  for (const std::int64_t number : numbers) samples.push_back(number % count);
  return samples;
}

template <class Samples>
DataLoader loader_of(std::optional<Samples>& of, const DataOptions& options) {
  if (!of) return {};
  const RowParts parts{.position_ids = options.reset_position_ids || options.neat_pack,
                       .segments = options.reset_attention_mask || options.neat_pack};
  return [samples = std::make_shared<const Samples>(std::move(*of)), parts,
          options](std::span<const std::int64_t> numbers) {
    const std::vector<std::int64_t> own = within(numbers, samples->sample_count());
    Rows rows(parts, static_cast<std::int64_t>(own.size()), row_length(*samples, own, options));
    for (const std::int64_t sample : own) rows.add(*samples, sample);
    return std::move(rows).batch();
  };
}

// Chosen and rejected answers of the same samples.
DataLoader pair_loader(std::optional<SftDataset>& chosen, std::optional<SftDataset>& rejected) {
  if (!chosen || !rejected) return {};
  if (chosen->sample_count() != rejected->sample_count()) {
    config_error("--data-path: {} chosen answers and {} rejected ones; write them together", chosen->sample_count(),
                 rejected->sample_count());
  }
  return [c = std::make_shared<const SftDataset>(std::move(*chosen)),
          r = std::make_shared<const SftDataset>(std::move(*rejected))](std::span<const std::int64_t> numbers) {
    const std::vector<std::int64_t> own = within(numbers, c->sample_count());
    Rows rows(RowParts{}, 2 * static_cast<std::int64_t>(own.size()),
              std::max(c->padded_length(own), r->padded_length(own)));
    for (const auto& answers : {c, r}) {
      for (const std::int64_t sample : own) rows.add(*answers, sample);
    }
    return std::move(rows).batch();
  };
}

// Of the three parts, each of which loader(place) opens.
template <class Loader>
DataLoaders loaders_of(const Loader& loader, const DataOptions& options, std::string about) {
  DataLoaders loaders{.about = std::move(about)};
  loaders.train = loader(place_of(DataSplit::kTrain));
  loaders.valid = loader(place_of(DataSplit::kValid));
  loaders.test = loader(place_of(DataSplit::kTest));
  if (loaders.train) return loaders;
  config_error("{}: no sample for train; give it a share in --split, or --train-data-path",
               options.data_path.empty() ? "--train-data-path" : "--data-path");
}

// Whose loss is a mean over tokens.
template <class Samples>
DataLoaders counted_loaders_of(PerSplit<std::optional<Samples>> parts, const DataOptions& options, std::string about) {
  DataLoaders loaders =
      loaders_of([&](std::size_t part) { return loader_of(parts[part], options); }, options, std::move(about));
  loaders.count_tokens = count_targets;
  return loaders;
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

// "12345 samples of up to 128 tokens from 2 pairs for train, 320 for valid"
template <class Samples>
std::string about(const PerSplit<std::optional<Samples>>& data, std::string_view of) {
  std::string text;
  for (const DataSplit part : kDataSplits) {
    const auto& samples = data[place_of(part)];
    if (!samples) continue;
    text += text.empty() ? fmt::format("{} samples of {} for {}", samples->sample_count(), of, name_of(part))
                         : fmt::format(", {} for {}", samples->sample_count(), name_of(part));
  }
  return text;
}

std::string pairs_text(const GptData& data, std::int64_t seq_length) {
  const auto& train = data[place_of(DataSplit::kTrain)];
  const std::size_t pairs = train ? train->sets().size() : 0;
  return fmt::format("{} tokens from {} pair{}", seq_length, pairs, pairs == 1 ? "" : "s");
}

// A prefix, or none for no word.
std::optional<std::filesystem::path> sft_prefix(std::string_view flag, const std::vector<std::string>& words) {
  if (words.empty()) return std::nullopt;
  if (words.size() == 1) return words.front();
  config_error(
      "{} has {} words; samples for fine-tuning come from one prefix: merge them with shardloom preprocess "
      "--merge-group-keys",
      flag, words.size());
}

SftDataOptions sft_options(const DataOptions& options, const TokenIds& ids, const SampleCounts& counts,
                           std::int64_t global_batch_size) {
  SftDataOptions sft{.prefix = sft_prefix("--data-path", words_of(options.data_path)),
                     .cache_path = options.data_cache_path};
  if (options.split) sft.split = *options.split;
  for (const DataSplit part : kDataSplits) {
    sft.prefixes[place_of(part)] =
        sft_prefix(fmt::format("--{}-data-path", name_of(part)), options.part_data_path[place_of(part)]);
    sft.samples[place_of(part)] = counts[place_of(part)];
  }
  sft.sample = {.seq_length = options.seq_length,
                .seed = options.seed,
                .eod = ids.eod,
                .pad = ids.pad,
                .neat_pack = options.neat_pack,
                .reset_position_ids = options.reset_position_ids,
                .reset_attention_mask = options.reset_attention_mask,
                .cut = options.no_cut_token     ? CutRule::kNone
                       : options.cut_max_seqlen ? CutRule::kEnd
                                                : CutRule::kTurns,
                .variable_lengths = options.variable_seq_lengths,
                .pad_to_multiple_of = options.pad_to_multiple_of,
                .shuffle = !options.no_shuffle,
                .padded_batch = options.padded_samples ? global_batch_size : 1};
  return sft;
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
  std::string text = about(data, pairs_text(data, options.seq_length));
  return counted_loaders_of(std::move(data), options, std::move(text));
}

DataLoaders instruction_data_loaders(const DataOptions& options, const TokenIds& ids, const SampleCounts& counts,
                                     std::int64_t global_batch_size) {
  check_ids(options, ids);
  SftData data = open_sft_data(sft_options(options, ids, counts, global_batch_size));
  std::string text = about(data, fmt::format("up to {} tokens for fine-tuning", options.seq_length));
  return counted_loaders_of(std::move(data), options, std::move(text));
}

DataLoaders preference_data_loaders(const DataOptions& options, const TokenIds& ids, const SampleCounts& counts,
                                    std::int64_t global_batch_size) {
  check_ids(options, ids);
  SftDataOptions sft = sft_options(options, ids, counts, global_batch_size);
  if (sft.sample.cut == CutRule::kTurns) sft.sample.cut = CutRule::kNone;  // both answers keep their prompt whole
  sft.kind = AnswerKind::kChosen;
  SftData chosen = open_sft_data(sft);
  sft.kind = AnswerKind::kRejected;
  SftData rejected = open_sft_data(sft);
  std::string text = about(chosen, fmt::format("up to {} tokens with two answers", options.seq_length));
  return loaders_of([&](std::size_t part) { return pair_loader(chosen[part], rejected[part]); }, options,
                    std::move(text));
}

TokenCounts count_targets(const Batch& batch) {
  const Tensor& targets = batch["targets"];
  const std::int64_t all = targets.numel();
  if (targets.is_meta() || targets.raw() == nullptr) return {all, all};
  const auto* first = targets.data<std::int32_t>();
  return {all - std::count(first, first + all, kNotScored), all};
}

}  // namespace loom::data
