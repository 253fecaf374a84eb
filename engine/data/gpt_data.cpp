#include "engine/data/gpt_data.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"

namespace loom::data {
namespace {

using Pair = std::shared_ptr<const io::IndexedDataset>;
using Samples = std::optional<std::int64_t>;

// Megatron's mid_level_dataset_surplus: more than the blend will take.
constexpr double kSurplus = 0.005;

std::int64_t share_of(std::int64_t samples, double weight, double surplus) {
  const double target = std::ceil(static_cast<double>(samples) * weight);
  return static_cast<std::int64_t>(std::ceil(target * (1 + surplus)));
}

// Where a part's data comes from.
struct Source {
  DataSplit split = DataSplit::kTrain;
  SplitShare share;
  std::string flag;
  const std::vector<Pair>& pairs;
  const std::optional<std::vector<double>>& weights;
  bool one_distribution = true;
};

class Opener {
 public:
  explicit Opener(const GptDataOptions& options) : options_(options) {}

  // None for a part of evaluation that --split leaves nothing of.
  std::optional<BlendedDataset> open(const Source& source) const {
    const Samples samples = options_.samples[place_of(source.split)];
    if (samples) require(*samples >= 0, "{} samples of {}", *samples, name_of(source.split));
    if (samples.value_or(0) > 0 && source.split != DataSplit::kTrain && source.one_distribution && is_empty(source)) {
      return std::nullopt;
    }
    // A weight in front of one pair makes a blend of it only where the parts are cut from it.
    const bool plain = source.pairs.size() == 1 && (!source.weights || !source.one_distribution);
    if (plain) return BlendedDataset(set_of(source, source.pairs.front(), samples));
    return source.weights ? by_weight(source, samples) : by_size(source, samples);
  }

 private:
  // With weights each pair gives samples, and each has to have some. Without them pairs give what they have, whole
  // samples of one epoch.
  bool is_empty(const Source& source) const {
    const auto has_sample = [&](const Pair& pair) {
      const std::int64_t tokens = tokens_of(*pair, source.share);
      return source.weights || source.pairs.size() == 1 ? tokens > 0 : tokens > options_.sample.seq_length;
    };
    return source.weights ? !std::ranges::all_of(source.pairs, has_sample)
                          : std::ranges::none_of(source.pairs, has_sample);
  }

  GptDataset set_of(const Source& source, const Pair& pair, Samples samples) const {
    return {pair, source.split, source.share, samples, options_.sample, cache_of(*pair)};
  }

  IndexCache cache_of(const io::IndexedDataset& pair) const {
    IndexCache cache{.folder = options_.cache_path, .longest_wait = options_.longest_wait};
    if (!cache.folder.empty()) return cache;
    cache.folder = pair.prefix() / "cache" / "GPTDataset_indices";
    cache.must_write = false;
    return cache;
  }

  BlendedDataset by_weight(const Source& source, Samples samples) const {
    if (!samples) {
      config_error("{}: data sets with weights need a number of samples for {}; give it, or leave the weights out",
                   source.flag, name_of(source.split));
    }
    const std::vector<double> weights = normalized(*source.weights);
    std::vector<GptDataset> sets;
    std::int64_t size = 0;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      size += share_of(*samples, weights[i], 0);
      sets.push_back(set_of(source, source.pairs[i], share_of(*samples, weights[i], kSurplus)));
    }
    return blended(source, std::move(sets), normalized(weights), size);
  }

  BlendedDataset by_size(const Source& source, Samples samples) const {
    std::vector<GptDataset> sets;
    std::vector<double> sizes;
    std::int64_t all = 0;
    for (const Pair& pair : source.pairs) {
      sets.push_back(set_of(source, pair, {}));
      sizes.push_back(static_cast<double>(sets.back().sample_count()));
      all += sets.back().sample_count();
    }
    if (!samples) return blended(source, std::move(sets), std::move(sizes), {});
    if (all == 0 && *samples > 0) {
      config_error(
          "{}: none of its data sets has a sample for {}, and {} are needed; give that part more in --split, "
          "or ask for no sample of it",
          source.flag, name_of(source.split), *samples);
    }
    if (all > 0) sizes = normalized(sizes);
    return blended(source, std::move(sets), std::move(sizes), std::min(*samples, all));
  }

  // Without `size`: every sample of every set.
  BlendedDataset blended(const Source& source, std::vector<GptDataset> sets, std::vector<double> weights,
                         Samples size) const {
    std::vector<std::int64_t> counts;
    for (const GptDataset& set : sets) counts.push_back(set.sample_count());
    const auto build = [&] {
      BlendIndex index = size ? blend_by_weight(weights, *size) : blend_all(counts);
      return std::vector<IndexVector>{std::move(index.dataset), std::move(index.sample)};
    };
    IndexCache cache{.folder = options_.cache_path, .longest_wait = options_.longest_wait};
    IndexArrays index =
        cached_indices(cache, fmt::format("blend-{}", name_of(source.split)), description_of(weights, counts, size),
                       {sizeof(std::int16_t), sizeof(std::int64_t)}, build);
    check_blend(source.flag, source.split, sets, index);
    return {std::move(sets), std::move(weights), std::move(index)};
  }

  static std::string description_of(const std::vector<double>& weights, const std::vector<std::int64_t>& counts,
                                    Samples size) {
    std::string text = fmt::format("blend\nsize {}\n", size ? fmt::format("{}", *size) : "all");
    for (std::size_t i = 0; i < weights.size(); ++i) {
      text += size ? fmt::format("weight {:a}\n", weights[i]) : fmt::format("samples {}\n", counts[i]);
    }
    return text;
  }

  const GptDataOptions& options_;
};

std::vector<Pair> pairs_of(const DataBlend& blend) {
  std::vector<Pair> pairs;
  for (const auto& prefix : blend.prefixes) pairs.push_back(std::make_shared<const io::IndexedDataset>(prefix));
  return pairs;
}

std::string flag_of(DataSplit split) { return fmt::format("--{}-data-path", name_of(split)); }

}  // namespace

void check_blend(const std::string& flag, DataSplit split, std::span<const GptDataset> sets, const IndexArrays& index) {
  const auto dataset = index.get<std::int16_t>(0);
  const auto sample = index.get<std::int64_t>(1);
  require(dataset.size() == sample.size(), "{} data sets of {} samples", dataset.size(), sample.size());
  std::vector<std::int64_t> drawn(sets.size());
  for (std::size_t i = 0; i < dataset.size(); ++i) {
    require(0 <= dataset[i] && std::cmp_less(dataset[i], sets.size()) && sample[i] >= 0, "sample {} of a blend", i);
    auto& most = drawn[static_cast<std::size_t>(dataset[i])];
    most = std::max(most, sample[i] + 1);
  }
  for (std::size_t d = 0; d < sets.size(); ++d) {
    if (drawn[d] <= sets[d].sample_count()) continue;
    config_error("{}: the blend for {} draws {} samples of {}, which has {}; give it less weight, or ask for fewer",
                 flag, name_of(split), drawn[d], escaped(sets[d].pair().prefix().string()), sets[d].sample_count());
  }
}

BlendedDataset::BlendedDataset(GptDataset only) : sample_count_(only.sample_count()) {
  sets_.push_back(std::move(only));
}

BlendedDataset::BlendedDataset(std::vector<GptDataset> sets, std::vector<double> weights, IndexArrays index)
    : sets_(std::move(sets)),
      weights_(std::move(weights)),
      index_(std::move(index)),
      dataset_(index_.get<std::int16_t>(0)),
      sample_(index_.get<std::int64_t>(1)),
      sample_count_(static_cast<std::int64_t>(dataset_.size())) {}

void BlendedDataset::fill(std::int64_t sample, const GptSampleRow& row) const {
  require(0 <= sample && sample < sample_count_, "sample {} of {}", sample, sample_count_);
  if (dataset_.empty()) return sets_.front().fill(sample, row);
  const auto at = static_cast<std::size_t>(sample);
  sets_[static_cast<std::size_t>(dataset_[at])].fill(sample_[at], row);
}

GptData open_gpt_data(const GptDataOptions& options) {
  GptData data;
  const Opener opener(options);
  if (options.blend) {
    const std::vector<Pair> pairs = pairs_of(*options.blend);
    const auto shares = parse_split(options.split);
    for (const DataSplit split : kDataSplits) {
      const auto& share = shares[place_of(split)];
      if (share && options.wanted[place_of(split)])
        data[place_of(split)] = opener.open({split, *share, "--data-path", pairs, options.blend->weights});
    }
    return data;
  }
  for (const DataSplit split : kDataSplits) {
    const auto& blend = options.blends[place_of(split)];
    if (!blend || !options.wanted[place_of(split)]) continue;
    const std::vector<Pair> pairs = pairs_of(*blend);
    data[place_of(split)] = opener.open({split, {}, flag_of(split), pairs, blend->weights, false});
  }
  return data;
}

}  // namespace loom::data
