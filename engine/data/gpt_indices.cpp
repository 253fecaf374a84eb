#include "engine/data/gpt_indices.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <span>

#include "engine/core/checked.h"
#include "engine/core/error.h"
#include "engine/data/numpy_random.h"

namespace loom::data {
namespace {

// Below this share of an epoch's samples the last epoch is shuffled apart.
constexpr double kApartBelow = 0.80;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

std::optional<std::int64_t> epochs_for(const GptPlanRequest& request) {
  if (!request.samples || *request.samples == 0) return 1;
  const auto tokens = checked_multiply(*request.samples, request.seq_length);
  if (request.tokens_per_epoch == 0 || !tokens || *tokens == std::numeric_limits<std::int64_t>::max()) return {};
  const std::int64_t epochs = ceil_div(*tokens + 1, request.tokens_per_epoch);
  if (epochs > std::numeric_limits<std::int32_t>::max()) return {};
  return epochs;
}

std::vector<std::int32_t> repeated(const SequenceRange& range, std::int64_t epochs) {
  std::vector<std::int32_t> documents(static_cast<std::size_t>(range.size() * epochs));
  for (auto at = documents.begin(); at != documents.end(); at += range.size()) {
    std::iota(at, at + range.size(), static_cast<std::int32_t>(range.begin));
  }
  return documents;
}

std::vector<std::int32_t> document_index(const GptPlan& plan, const SequenceRange& range, NumpyRandom& random) {
  std::vector<std::int32_t> documents = range.size() == 0 ? std::vector<std::int32_t>{} : repeated(range, plan.epochs);
  const std::span all(documents);
  const auto last = plan.before_last_epoch ? static_cast<std::size_t>(range.size()) : 0;
  random.shuffle(all.first(all.size() - last));
  random.shuffle(all.last(last));
  return documents;
}

std::vector<std::int64_t> shuffle_index(const GptPlan& plan, NumpyRandom& random) {
  std::vector<std::int64_t> samples(static_cast<std::size_t>(plan.samples));
  std::iota(samples.begin(), samples.end(), 0);
  const std::span all(samples);
  const auto first = static_cast<std::size_t>(plan.before_last_epoch.value_or(plan.samples));
  random.shuffle(all.first(first));
  random.shuffle(all.subspan(first));
  return samples;
}

// Walks the tokens of a document index, seq_length at a time.
class SampleWalk {
 public:
  SampleWalk(const std::vector<std::int32_t>& documents, const std::function<std::int32_t(std::int64_t)>& length)
      : documents_(documents), length_(length) {}

  std::int64_t document() const { return static_cast<std::int64_t>(place_); }
  std::int64_t token() const { return token_; }

  // Passes seq_length + 1 tokens and goes back to the last of them, or stops at the last token of all. Where a
  // sequence ends exactly there, the walk stays in it.
  void next(std::int64_t seq_length) {
    std::int64_t left = seq_length + 1;
    while (true) {
      const std::int64_t here = length_(documents_[place_]) - token_;
      if (left <= here) {
        token_ += left - 1;
        return;
      }
      left -= here;
      if (place_ + 1 == documents_.size()) {
        token_ = length_(documents_[place_]) - 1;
        return;
      }
      ++place_;
      token_ = 0;
    }
  }

 private:
  const std::vector<std::int32_t>& documents_;
  const std::function<std::int32_t(std::int64_t)>& length_;
  std::size_t place_ = 0;
  std::int64_t token_ = 0;
};

std::vector<std::int64_t> sample_index(const GptPlan& plan, const std::vector<std::int32_t>& documents,
                                       std::int64_t seq_length,
                                       const std::function<std::int32_t(std::int64_t)>& length) {
  std::vector<std::int64_t> entries;
  entries.reserve(2 * static_cast<std::size_t>(plan.samples + 1));
  SampleWalk walk(documents, length);
  for (std::int64_t i = 0; i <= plan.samples; ++i) {
    if (i > 0) walk.next(seq_length);
    entries.push_back(walk.document());
    entries.push_back(walk.token());
  }
  return entries;
}

}  // namespace

std::optional<GptPlan> plan_samples(const GptPlanRequest& request) {
  const std::optional<std::int64_t> epochs = epochs_for(request);
  if (!epochs) return {};
  const auto tokens = checked_multiply(*epochs, request.tokens_per_epoch);
  if (!tokens) return {};
  GptPlan plan{.tokens_per_epoch = request.tokens_per_epoch, .epochs = *epochs};
  const std::int64_t targets = std::max<std::int64_t>(*tokens - 1, 0);  // every token but the first is one
  plan.samples = request.keep_partial ? ceil_div(targets, request.seq_length) : targets / request.seq_length;
  if (plan.epochs > 1) {
    const std::int64_t before = ((plan.epochs - 1) * plan.tokens_per_epoch - 1) / request.seq_length;
    const std::int64_t of_last = *request.samples - before;
    const std::int64_t of_one = (plan.tokens_per_epoch - 1) / request.seq_length;
    if (of_last < static_cast<std::int64_t>(kApartBelow * static_cast<double>(of_one))) plan.before_last_epoch = before;
  }
  return plan;
}

GptIndices build_indices(const GptPlan& plan, const SequenceRange& range, std::int64_t seq_length, std::uint32_t seed,
                         const std::function<std::int32_t(std::int64_t)>& length) {
  require(std::in_range<std::int32_t>(range.end), "sequence {} in an index of 32 bits", range.end);
  NumpyRandom random(seed);
  GptIndices indices;
  indices.document = document_index(plan, range, random);
  indices.sample = sample_index(plan, indices.document, seq_length, length);
  indices.shuffle = shuffle_index(plan, random);
  return indices;
}

}  // namespace loom::data
