#include "engine/data/gpt_dataset.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/io/checksum.h"

namespace loom::data {
namespace {

std::string shown(const io::IndexedDataset& pair) { return escaped(pair.prefix().string()); }

std::int64_t tokens_in(const io::IndexedDataset& pair, const SequenceRange& range) {
  std::int64_t tokens = 0;
  for (std::int64_t i = range.begin; i < range.end; ++i) tokens += pair.length(i);
  return tokens;
}

GptPlan plan_of(const io::IndexedDataset& pair, DataSplit split, const SequenceRange& range,
                std::optional<std::int64_t> samples, const GptSampleOptions& options) {
  const GptPlanRequest request{.tokens_per_epoch = tokens_in(pair, range),
                               .samples = samples,
                               .seq_length = options.seq_length,
                               .keep_partial = split == DataSplit::kValid && !options.drop_last_partial_validation};
  if (const auto plan = plan_samples(request)) return *plan;
  if (request.tokens_per_epoch == 0) {
    config_error(
        "--data-path {}: {} samples are needed of its part for {}, sequences [{}, {}) of {}, which has no token; give "
        "that part more in --split, or ask for no sample of it",
        shown(pair), *samples, name_of(split), range.begin, range.end, pair.sequence_count());
  }
  config_error(
      "--data-path {}: {} samples of {} tokens are needed of its part for {}, which has {} tokens; ask for fewer",
      shown(pair), *samples, options.seq_length, name_of(split), request.tokens_per_epoch);
}

// Everything that the indices depend on: the lengths of the sequences, and no name of a file.
std::string description_of(const io::IndexedDataset& pair, const SequenceRange& range, const GptPlan& plan,
                           const GptSampleOptions& options) {
  return fmt::format(
      "GPT samples\nsequences {}\ntokens {}\nlengths crc32c {:08x}\nrange {} {}\nseq_length {}\nseed {}\nepochs {}\n"
      "samples {}\nbefore_last_epoch {}\n",
      pair.sequence_count(), pair.token_count(), io::crc32c(pair.length_bytes()), range.begin, range.end,
      options.seq_length, options.seed, plan.epochs, plan.samples, plan.before_last_epoch.value_or(plan.samples));
}

void check(const io::IndexedDataset& pair, const GptSampleOptions& options) {
  require(options.seq_length >= 1, "seq_length is {}", options.seq_length);
  if (!std::in_range<std::uint32_t>(options.seed)) {
    config_error("--seed {}: samples of .bin/.idx pairs are shuffled by numpy's generator, whose seeds are 0 to {}",
                 options.seed, std::numeric_limits<std::uint32_t>::max());
  }
  if (!std::in_range<std::int32_t>(pair.sequence_count())) {
    config_error("--data-path {}: it has {} sequences, and at most {} can be numbered; cut it into several pairs",
                 shown(pair), pair.sequence_count(), std::numeric_limits<std::int32_t>::max());
  }
  if (pair.dtype() == io::IndexedDtype::kF32 || pair.dtype() == io::IndexedDtype::kF64) {
    config_error("--data-path {}: it holds {}, which are not token ids; give a pair of integers", shown(pair),
                 io::name_of(pair.dtype()));
  }
}

void fill_loss_mask(std::span<const std::int32_t> text, const GptSampleOptions& options, std::int32_t pad,
                    std::span<float> mask) {
  for (std::size_t i = 0; i < mask.size(); ++i) {
    const bool at_eod = options.eod_mask_loss && text[i] == options.eod;
    mask[i] = at_eod || text[i + 1] == pad ? 0.0F : 1.0F;
  }
}

// Calls write(begin, end) for the segments of the first `count` tokens, which end behind each EOD; one segment unless
// `resets`.
template <class Write>
void for_each_segment(std::span<const std::int32_t> text, std::int32_t eod, bool resets, std::size_t count,
                      Write&& write) {
  const auto all = text.first(count);
  for (auto begin = all.begin(); begin != all.end();) {
    auto end = resets ? std::find(begin, all.end(), eod) : all.end();
    if (end != all.end()) ++end;
    write(begin - all.begin(), end - all.begin());
    begin = end;
  }
}

// Without pad ids: an embedding has no row for them.
void copy_ids(std::span<const std::int32_t> from, std::int32_t pad, std::span<std::int32_t> to) {
  std::ranges::transform(from.first(to.size()), to.begin(), [pad](std::int32_t id) { return id == pad ? 0 : id; });
}

}  // namespace

std::int32_t pad_in_use(const GptSampleOptions& options) {
  const bool is_special = std::ranges::find(options.special_ids, options.pad) != options.special_ids.end();
  return options.pad == options.eod || is_special ? -1 : options.pad;
}

std::vector<std::int32_t> segment_lengths(std::span<const std::int32_t> attend_from) {
  std::vector<std::int32_t> lengths;
  for (std::size_t i = 0; i < attend_from.size(); ++i) {
    if (i == 0 || attend_from[i] != attend_from[i - 1]) lengths.push_back(0);
    ++lengths.back();
  }
  return lengths;
}

std::int64_t tokens_of(const io::IndexedDataset& pair, const SplitShare& share) {
  return tokens_in(pair, range_of(share, pair.sequence_count()));
}

GptDataset::GptDataset(std::shared_ptr<const io::IndexedDataset> pair, DataSplit split, const SplitShare& share,
                       std::optional<std::int64_t> samples, const GptSampleOptions& options, const IndexCache& cache)
    : pair_(std::move(pair)), options_(options), pad_(pad_in_use(options)) {
  check(*pair_, options);
  range_ = range_of(share, pair_->sequence_count());
  plan_ = plan_of(*pair_, split, range_, samples, options);
  const auto build = [&] {
    GptIndices built = build_indices(plan_, range_, options_.seq_length, static_cast<std::uint32_t>(options_.seed),
                                     [this](std::int64_t sequence) { return pair_->length(sequence); });
    return std::vector<IndexVector>{std::move(built.document), std::move(built.sample), std::move(built.shuffle)};
  };
  indices_ =
      cached_indices(cache, fmt::format("gpt-{}", name_of(split)), description_of(*pair_, range_, plan_, options_),
                     {sizeof(std::int32_t), sizeof(std::int64_t), sizeof(std::int64_t)}, build);
  documents_ = indices_.get<std::int32_t>(0);
  entries_ = indices_.get<std::int64_t>(1);
  shuffle_ = indices_.get<std::int64_t>(2);
  check_index(std::cmp_equal(documents_.size(), plan_.epochs * range_.size()) &&
                  std::cmp_equal(entries_.size(), 2 * (plan_.samples + 1)) &&
                  std::cmp_equal(shuffle_.size(), plan_.samples),
              0);
}

// The indices may come from a file of somebody else, so each place is looked at before it is used.
void GptDataset::read_tokens(std::int64_t sample, std::span<std::int32_t> tokens) const {
  const std::int64_t shuffled = shuffle_[static_cast<std::size_t>(sample)];
  check_index(0 <= shuffled && shuffled < sample_count(), sample);
  const auto entries = entries_.subspan(2 * static_cast<std::size_t>(shuffled), 4);
  check_index(entries[0] >= 0 && std::cmp_less(entries[2], documents_.size()), sample);
  std::int64_t from = entries[1];
  for (std::int64_t place = entries[0]; place <= entries[2]; ++place) {
    const std::int64_t sequence = documents_[static_cast<std::size_t>(place)];
    check_index(range_.begin <= sequence && sequence < range_.end, sample);
    const std::int64_t length = pair_->length(sequence);
    const std::int64_t end = place == entries[2] ? entries[3] + 1 : length;
    check_index(0 <= from && from <= end && end <= length && std::cmp_less_equal(end - from, tokens.size()), sample);
    const auto part = tokens.first(static_cast<std::size_t>(end - from));
    pair_->read(sequence, from, part);
    tokens = tokens.subspan(part.size());
    from = 0;
  }
  std::ranges::fill(tokens, pad_);
}

void GptDataset::check_index(bool holds, std::int64_t sample) const {
  if (holds) return;
  raise<Error>("{}: the index of sample {} leads out of the data; remove the cached indices and start again",
               shown(*pair_), sample);
}

void GptDataset::fill(std::int64_t sample, const GptSampleRow& row) const {
  require(0 <= sample && sample < sample_count(), "sample {} of {}", sample, sample_count());
  pair_->check_unchanged();
  std::vector<std::int32_t> text(static_cast<std::size_t>(options_.seq_length) + 1);
  read_tokens(sample, text);
  copy_ids(text, pad_, row.tokens);
  copy_ids(std::span(text).subspan(1), pad_, row.labels);
  fill_loss_mask(text, options_, pad_, row.loss_mask);
  for_each_segment(text, options_.eod, options_.reset_position_ids, row.position_ids.size(),
                   [&](std::ptrdiff_t begin, std::ptrdiff_t end) {
                     std::iota(row.position_ids.begin() + begin, row.position_ids.begin() + end, 0);
                   });
  for_each_segment(text, options_.eod, options_.reset_attention_mask, row.attend_from.size(),
                   [&](std::ptrdiff_t begin, std::ptrdiff_t end) {
                     std::fill(row.attend_from.begin() + begin, row.attend_from.begin() + end,
                               static_cast<std::int32_t>(begin));
                   });
}

}  // namespace loom::data
