#include "engine/data/token_batches.h"

#include <algorithm>
#include <fmt/format.h>
#include <functional>
#include <memory>

#include "engine/core/checked.h"
#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/data/byte_dataset.h"
#include "engine/data/content.h"
#include "engine/data/gpt_data.h"
#include "engine/data/sft_data.h"
#include "engine/nn/functional.h"

namespace loom::data {
namespace {

constexpr std::int32_t kNotScored = -100;

// The parts of a sample besides tokens and targets.
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
DataLoader loader_of(std::shared_ptr<const Samples> samples, const DataOptions& options) {
  const RowParts parts{.position_ids = options.reset_position_ids || options.neat_pack,
                       .segments = options.reset_attention_mask || options.neat_pack};
  return [samples = std::move(samples), parts, options](std::span<const std::int64_t> numbers) {
    const std::vector<std::int64_t> own = within(numbers, samples->sample_count());
    Rows rows(parts, static_cast<std::int64_t>(own.size()), row_length(*samples, own, options));
    for (const std::int64_t sample : own) rows.add(*samples, sample);
    return std::move(rows).batch();
  };
}

template <class Samples>
std::shared_ptr<const Samples> shared(std::optional<Samples>& samples) {
  return samples ? std::make_shared<const Samples>(std::move(*samples)) : nullptr;
}

std::string place_of_line(const SftDataset& samples, std::int64_t sample) {
  return fmt::format("line {} of {}", samples.line_index()[static_cast<std::size_t>(sample)],
                     escaped(samples.files().prefix().string()));
}

using Place = std::function<std::string(std::int64_t number)>;

// A sample of token ids runs through several documents.
Place place_in(const std::shared_ptr<const BlendedDataset>&) { return {}; }
Place place_in(const std::shared_ptr<const SftDataset>& samples) {
  if (samples == nullptr) return {};
  return [samples](std::int64_t number) { return place_of_line(*samples, number % samples->sample_count()); };
}

// --- process rewards

// Leaves the labels of a row that count.
void keep_rewards(std::span<const std::int32_t> tokens, std::span<std::int32_t> targets, const TokenIds& ids,
                  const std::function<std::string()>& where) {
  std::int64_t labels = 0, kept = 0;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    if (targets[i] == kNotScored) continue;
    ++labels;
    if (ids.placeholder && tokens[i] != *ids.placeholder) {
      targets[i] = kNotScored;
      continue;
    }
    ++kept;
    if (ids.rewards.empty() || std::ranges::find(ids.rewards, targets[i]) != ids.rewards.end()) continue;
    config_error(
        "{}: the label of token {} is id {}, and --reward-tokens are the ids {}; name it there, or preprocess "
        "with these --reward-tokens",
        where(), i, targets[i], fmt::join(ids.rewards, ", "));
  }
  if (labels == 0 || kept > 0) return;
  config_error(
      "{}: none of its {} labels is at a --placeholder-token, id {}; give the token that the data was "
      "preprocessed with",
      where(), labels, *ids.placeholder);
}

DataLoader process_reward_loader(const std::shared_ptr<const SftDataset>& samples, const DataOptions& options,
                                 const TokenIds& ids) {
  if (samples == nullptr) return {};
  return [samples, rows = loader_of(samples, options), ids](std::span<const std::int64_t> numbers) {
    Batch batch = rows(numbers);
    const std::vector<std::int64_t> own = within(numbers, samples->sample_count());
    const Tensor &inputs = batch["input_ids"], &targets = batch["targets"];
    const auto length = static_cast<std::size_t>(targets.shape()[1]);
    for (std::size_t row = 0; row < own.size(); ++row) {
      keep_rewards({inputs.data<std::int32_t>() + row * length, length},
                   {targets.data<std::int32_t>() + row * length, length}, ids,
                   [&] { return place_of_line(*samples, own[row]); });
    }
    return batch;
  };
}

// --- pairs

// Two answers to each of the same prompts.
struct AnswerSets {
  std::shared_ptr<const SftDataset> chosen, rejected;
};

AnswerSets answers_of(std::optional<SftDataset>& chosen, std::optional<SftDataset>& rejected) {
  if (!chosen || !rejected) return {};
  if (chosen->sample_count() != rejected->sample_count()) {
    config_error("--data-path: {} chosen answers and {} rejected ones; write them together", chosen->sample_count(),
                 rejected->sample_count());
  }
  return {std::make_shared<const SftDataset>(std::move(*chosen)),
          std::make_shared<const SftDataset>(std::move(*rejected))};
}

// The parts of a batch of pairs besides tokens and targets.
struct PairParts {
  bool lengths = false;
  std::optional<std::int64_t> first_number;  // of the files of this part
};

DataLoader pair_loader(const AnswerSets& answers, const PairParts& parts) {
  if (answers.chosen == nullptr) return {};
  return [answers, parts](std::span<const std::int64_t> numbers) {
    const auto& [chosen, rejected] = answers;
    const std::vector<std::int64_t> own = within(numbers, chosen->sample_count());
    Rows rows(RowParts{}, 2 * static_cast<std::int64_t>(own.size()),
              std::max(chosen->padded_length(own), rejected->padded_length(own)));
    nn::ValueList lengths, lines;
    for (const auto& set : {chosen, rejected}) {
      for (const std::int64_t sample : own) {
        rows.add(*set, sample);
        lengths.emplace_back(set->length(sample));
      }
    }
    for (const std::int64_t sample : own) {
      lines.emplace_back(parts.first_number.value_or(0) + chosen->line_index()[static_cast<std::size_t>(sample)]);
    }
    Batch batch = std::move(rows).batch();
    if (parts.lengths) batch.values.emplace_back("lengths", std::move(lengths));
    if (parts.first_number) batch.values.emplace_back("numbers", std::move(lines));
    return batch;
  };
}

// The pairs of all lines of the files, one set behind another.
class AllPairs {
 public:
  void add(AnswerSets set) {
    if (set.chosen == nullptr) return;
    sets_.push_back({std::move(set), count_});
    count_ += sets_.back().answers.chosen->sample_count();
  }
  std::int64_t count() const { return count_; }

  Batch batch(std::span<const std::int64_t> numbers) const {
    std::int64_t length = 1;
    for (const std::int64_t number : numbers) {
      const auto [set, sample] = find(number);
      for (const auto& answers : {set->chosen, set->rejected}) {
        length = std::max(length, answers->padded_length(std::span(&sample, 1)));
      }
    }
    Rows rows(RowParts{}, 2 * static_cast<std::int64_t>(numbers.size()), length);
    nn::ValueList said;
    for (const bool chosen : {true, false}) {
      for (const std::int64_t number : numbers) {
        const auto [set, sample] = find(number);
        rows.add(chosen ? *set->chosen : *set->rejected, sample);
      }
    }
    for (const std::int64_t number : numbers) said.emplace_back(number);
    Batch batch = std::move(rows).batch();
    batch.values.emplace_back("numbers", std::move(said));
    return batch;
  }

  std::string digest() const {
    std::vector<std::filesystem::path> files;
    for (const Set& set : sets_) {
      for (const auto& answers : {set.answers.chosen, set.answers.rejected}) {
        for (const io::IndexedDataset* pair : {&answers->files().input_ids(), &answers->files().labels()}) {
          files.push_back(io::bin_path(pair->prefix()));
          files.push_back(io::idx_path(pair->prefix()));
        }
      }
    }
    return fmt::format("{:016x}", content_of(files).digest);
  }

 private:
  struct Set {
    AnswerSets answers;
    std::int64_t first = 0;
  };
  std::pair<const AnswerSets*, std::int64_t> find(std::int64_t number) const {
    require(0 <= number && number < count_, "pair {} of {}", number, count_);
    const auto behind = std::ranges::upper_bound(sets_, number, {}, &Set::first);
    const Set& set = *std::prev(behind);
    return {&set.answers, number - set.first};
  }

  std::vector<Set> sets_;
  std::int64_t count_ = 0;
};

// A pair weighs the same however many tokens it has; one whose answers have none teaches nothing.
TokenCounts count_pairs(const Batch& batch) {
  const TokenCounts tokens = count_targets(batch);
  return {tokens.scored > 0 ? batch["targets"].shape()[0] / 2 : 0, tokens.all};
}

// A job's requirements on its data.
struct Job {
  const DataOptions& options;
  const SampleCounts& counts;
};

// "--split 969,30,1 leaves nothing of --data-path data/pair for valid and test; ..."
template <class Samples>
std::vector<std::string> warnings_of_empty(const PerSplit<std::optional<Samples>>& parts, const Job& job) {
  if (job.options.data_path.empty()) return {};
  const std::string split = job.options.split.value_or(GptDataOptions{}.split);
  const auto shares = parse_split(split);
  std::vector<std::string_view> empty;
  for (const DataSplit part : kDataSplits) {
    const std::size_t at = place_of(part);
    if (shares[at] && job.counts[at] > 0 && !parts[at]) empty.push_back(name_of(part));
  }
  if (empty.empty()) return {};
  return {fmt::format(
      "--split {} leaves nothing of --data-path {} for {}, since the data is small; there is no evaluation on {}, give "
      "it more in --split, or --valid-data-path and --test-data-path beside --train-data-path",
      split, escaped(job.options.data_path.back().string()), fmt::join(empty, " and "), fmt::join(empty, " and "))};
}

// A part's batches, and the samples that they are of.
template <class Samples>
struct Opened {
  DataLoader loader;
  std::shared_ptr<const Samples> samples;
};

// The loaders of the three parts, each of which open(place) opens.
template <class Samples, class Open>
DataLoaders loaders_of(const PerSplit<std::optional<Samples>>& parts, const Open& open, const Job& job,
                       std::string about) {
  DataLoaders loaders{.about = std::move(about), .warnings = warnings_of_empty(parts, job)};
  Opened<Samples> train = open(place_of(DataSplit::kTrain));
  loaders.place = place_in(train.samples);
  loaders.train = std::move(train.loader);
  loaders.valid = open(place_of(DataSplit::kValid)).loader;
  loaders.test = open(place_of(DataSplit::kTest)).loader;
  const DataOptions& options = job.options;
  if (loaders.train || job.counts[place_of(DataSplit::kTrain)] == 0) return loaders;
  config_error("{}: no sample for train; give it a share in --split, or --train-data-path",
               options.data_path.empty() ? "--train-data-path" : "--data-path");
}

// Whose loss is a mean over tokens.
template <class Samples>
DataLoaders counted_loaders_of(PerSplit<std::optional<Samples>> parts, const Job& job, std::string about) {
  const auto open = [&](std::size_t part) -> Opened<Samples> {
    const auto samples = shared(parts[part]);
    return {samples == nullptr ? DataLoader{} : loader_of(samples, job.options), samples};
  };
  DataLoaders loaders = loaders_of(parts, open, job, std::move(about));
  loaders.count_tokens = count_targets;
  return loaders;
}

// With neat_pack the mask marks the ends of samples.
void check_ids(const DataOptions& options, const TokenIds& ids) {
  if (ids.eod >= 0) return;
  const bool by_eod = !options.neat_pack;
  const std::pair<bool, const char*> flags[] = {{by_eod && options.reset_position_ids, "--reset-position-ids"},
                                                {by_eod && options.reset_attention_mask, "--reset-attention-mask"},
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
  config_error("{}: {} times {} samples do not fit into 64 bits; give less", flag, count, samples);
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
  std::size_t pairs = 0;
  for (const auto& part : data) pairs = part && pairs == 0 ? part->sets().size() : pairs;
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

// Samples that are not cut turn by turn: both answers keep their whole prompt, and rewards keep their places.
SftDataOptions whole_samples(SftDataOptions sft) {
  if (sft.sample.cut == CutRule::kTurns) sft.sample.cut = CutRule::kNone;
  return sft;
}

std::pair<SftData, SftData> open_pairs(SftDataOptions sft) {
  sft.kind = AnswerKind::kChosen;
  SftData chosen = open_sft_data(sft);
  sft.kind = AnswerKind::kRejected;
  return {std::move(chosen), open_sft_data(sft)};
}

// The number of the first line of each part's files. A part that is not used may have lines.
PerSplit<std::int64_t> first_numbers(const SftDataOptions& sft) {
  PerSplit<std::int64_t> first{};
  std::int64_t count = 0;
  for (const DataSplit part : kDataSplits) {
    const auto& prefix = sft.prefixes[place_of(part)];
    if (!prefix) continue;
    first[place_of(part)] = count;
    count += SftFiles(fmt::format("--{}-data-path", name_of(part)), *prefix, AnswerKind::kChosen).line_count();
  }
  return first;
}

NumberedSamples numbered_pairs(SftDataOptions sft) {
  sft.split = "1,0,0";
  sft.samples = {};
  sft.cache_path.clear();
  sft.sample.shuffle = false;
  sft.sample.padded_batch = 1;
  auto [chosen, rejected] = open_pairs(sft);
  const auto all = std::make_shared<AllPairs>();
  for (const DataSplit part : kDataSplits) {
    all->add(answers_of(chosen[place_of(part)], rejected[place_of(part)]));
  }
  return {.batch = [all](std::span<const std::int64_t> numbers) { return all->batch(numbers); },
          .count = all->count(),
          .digest = [all] { return all->digest(); }};
}

DataLoaders pair_loaders(const DataOptions& options, const TokenIds& ids, const SampleCounts& counts,
                         std::int64_t global_batch_size, bool lengths) {
  check_ids(options, ids);
  SftDataOptions sft = whole_samples(sft_options(options, ids, counts, global_batch_size));
  auto [chosen, rejected] = open_pairs(sft);
  std::string text = about(chosen, fmt::format("up to {} tokens with two answers", options.seq_length));
  const PerSplit<std::int64_t> first = first_numbers(sft);
  const Job job{options, counts};
  const auto open = [&](std::size_t part) -> Opened<SftDataset> {
    PairParts parts{.lengths = lengths, .first_number = {}};
    if (options.numbered_samples) parts.first_number = first[part];
    const AnswerSets answers = answers_of(chosen[part], rejected[part]);
    return {pair_loader(answers, parts), answers.chosen};
  };
  DataLoaders loaders = loaders_of(chosen, open, job, std::move(text));
  if (options.numbered_samples) loaders.numbered = numbered_pairs(std::move(sft));
  return loaders;
}

}  // namespace

SampleCounts sample_counts(const RunLength& run) {
  const std::int64_t batch = run.global_batch_size;
  std::int64_t train = run.train_samples > 0 ? run.train_samples : product("--train-iters", run.train_iters, batch);
  if (run.skip_train) train = 0;
  const std::int64_t evaluation = product("--eval-iters", run.eval_iters, batch);
  return {train, product("--eval-interval", run.train_iters / run.eval_interval + 1, evaluation), evaluation};
}

DataLoaders token_data_loaders(const DataOptions& options, const TokenIds& ids, const SampleCounts& counts) {
  check_ids(options, ids);
  GptData data = open_gpt_data(gpt_options(options, ids, counts));
  std::string text = about(data, pairs_text(data, options.seq_length));
  return counted_loaders_of(std::move(data), {options, counts}, std::move(text));
}

DataLoaders instruction_data_loaders(const DataOptions& options, const TokenIds& ids, const SampleCounts& counts,
                                     std::int64_t global_batch_size) {
  check_ids(options, ids);
  SftData data = open_sft_data(sft_options(options, ids, counts, global_batch_size));
  std::string text = about(data, fmt::format("up to {} tokens for fine-tuning", options.seq_length));
  return counted_loaders_of(std::move(data), {options, counts}, std::move(text));
}

DataLoaders outcome_reward_data_loaders(const DataOptions& options, const TokenIds& ids, const SampleCounts& counts,
                                        std::int64_t global_batch_size) {
  return pair_loaders(options, ids, counts, global_batch_size,
                      /*lengths=*/true);  // each pair counts, whatever its labels
}

DataLoaders preference_data_loaders(const DataOptions& options, const TokenIds& ids, const SampleCounts& counts,
                                    std::int64_t global_batch_size) {
  DataLoaders loaders = pair_loaders(options, ids, counts, global_batch_size, /*lengths=*/false);
  loaders.count_tokens = count_pairs;
  return loaders;
}

DataLoaders process_reward_data_loaders(const DataOptions& options, const TokenIds& ids, const SampleCounts& counts,
                                        std::int64_t global_batch_size) {
  check_ids(options, ids);
  SftDataOptions sft = whole_samples(sft_options(options, ids, counts, global_batch_size));
  sft.sample.labels_in_place = true;
  SftData data = open_sft_data(sft);
  std::string text = about(data, fmt::format("up to {} tokens with process rewards", options.seq_length));
  const Job job{options, counts};
  const auto open = [&](std::size_t part) -> Opened<SftDataset> {
    const auto samples = shared(data[part]);
    return {process_reward_loader(samples, options, ids), samples};
  };
  DataLoaders loaders = loaders_of(data, open, job, std::move(text));
  loaders.count_tokens = count_targets;
  return loaders;
}

std::int64_t epoch_samples(const DataOptions& options, std::int64_t global_batch_size) {
  const std::size_t train = place_of(DataSplit::kTrain);
  SampleCounts counts{};
  counts[train] = 1;
  if (data_kind(options) == DataKind::kBytes) {
    return open_byte_data({.paths = options.data_path,
                           .seq_length = options.seq_length,
                           .held_out_fraction = options.held_out_fraction,
                           .seed = options.seed})
        .train.sample_count();
  }
  if (data_kind(options) == DataKind::kTokens) {
    GptDataOptions gpt = gpt_options(options, {}, counts);
    gpt.samples[train] = std::nullopt;
    const std::optional<DataBlend>& blend = gpt.blends[train] ? gpt.blends[train] : gpt.blend;
    if (blend && blend->weights) {
      config_error("an epoch of data that is blended by weights has no length; give --train-iters or --train-samples");
    }
    return open_gpt_data(gpt)[train].value().sample_count();
  }
  const TokenIds any{.eod = 0, .pad = 0, .others = {}};  // samples are counted, not read
  SftDataOptions sft = sft_options(options, any, counts, global_batch_size);
  sft.samples[train] = std::nullopt;
  if (!options.is_pairwise_dataset) return open_sft_data(sft)[train].value().sample_count();
  return open_pairs(whole_samples(sft)).first[train].value().sample_count();
}

TokenCounts count_targets(const Batch& batch) {
  const Tensor& targets = batch["targets"];
  const std::int64_t all = targets.numel();
  if (targets.is_meta() || targets.raw() == nullptr) return {all, all};
  const auto* first = targets.data<std::int32_t>();
  return {all - std::count(first, first + all, kNotScored), all};
}

}  // namespace loom::data
