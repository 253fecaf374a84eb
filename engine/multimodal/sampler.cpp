#include "engine/multimodal/sampler.h"

#include <array>
#include <mutex>
#include <utility>

#include "engine/core/checked.h"
#include "engine/core/error.h"
#include "engine/multimodal/torch_permutation.h"

namespace loom::multimodal {

// The orders of the last epochs that were asked for.
class RandomBatchSampler::Orders {
 public:
  using Order = std::shared_ptr<const std::vector<std::int64_t>>;

  Order of(std::int64_t epoch, std::int64_t count) {
    const std::lock_guard lock(mutex_);
    Entry& entry = entries_[static_cast<std::size_t>(epoch) % entries_.size()];
    if (entry.epoch != epoch) {
      entry = {epoch, std::make_shared<const std::vector<std::int64_t>>(
                          torch_permutation(count, static_cast<std::uint64_t>(epoch)))};
    }
    return entry.order;
  }

 private:
  struct Entry {
    std::int64_t epoch = -1;
    Order order;
  };
  std::mutex mutex_;
  std::array<Entry, 2> entries_;
};

RandomBatchSampler::RandomBatchSampler(const SamplerOptions& options)
    : options_(options), orders_(std::make_unique<Orders>()) {
  require(options.samples >= 0 && options.micro_batch_size > 0 && options.data_ranks > 0 && options.micro_batches > 0,
          "a sampler of {} samples, {} times {} times {}", options.samples, options.micro_batch_size,
          options.data_ranks, options.micro_batches);
  const auto of_ranks = checked_multiply(options.micro_batch_size, options.data_ranks);
  require(of_ranks && checked_multiply(*of_ranks, options.micro_batches), "a batch of more than 64 bits");
  of_ranks_ = *of_ranks;
  active_ = options.samples - options.samples % of_ranks_;
  if (active_ == 0) {
    config_error(
        "{} has {} samples, and a micro-batch of {} on {} ranks takes {}; use a smaller --micro-batch-size, fewer "
        "ranks or more data",
        options.where, options.samples, options.micro_batch_size, options.data_ranks, of_ranks_);
  }
  const std::int64_t share =
      options.data_sharding ? options.samples / of_ranks_ : options.samples / options.micro_batch_size;
  bucket_ = share * options.micro_batch_size;
  if (options.shuffle && bucket_ >= kMostPermuted) {
    config_error("{} has {} samples; up to {} can be shuffled: write shuffle: false", options.where, options.samples,
                 kMostPermuted - 1);
  }
}

RandomBatchSampler::~RandomBatchSampler() = default;
RandomBatchSampler::RandomBatchSampler(RandomBatchSampler&&) noexcept = default;

std::int64_t RandomBatchSampler::index_at(std::int64_t consumed, std::int64_t rank, std::int64_t row) const {
  const std::int64_t epoch = consumed / active_;
  const std::int64_t offset = consumed % active_;
  const std::int64_t entry =
      options_.data_sharding ? offset / options_.data_ranks + row : offset + row * options_.data_ranks + rank;
  const std::int64_t first = options_.data_sharding ? rank * bucket_ : 0;
  if (!options_.shuffle) return first + entry;
  return first + (*orders_->of(epoch, bucket_))[static_cast<std::size_t>(entry)];
}

std::vector<std::int64_t> RandomBatchSampler::batch(std::int64_t consumed, std::int64_t rank) const {
  require(consumed >= 0 && consumed % of_ranks_ == 0, "{} consumed samples, batches of {}", consumed, of_ranks_);
  require(0 <= rank && rank < options_.data_ranks, "rank {} of {}", rank, options_.data_ranks);
  std::vector<std::int64_t> rows;
  for (std::int64_t row = 0; row < options_.micro_batch_size; ++row) rows.push_back(index_at(consumed, rank, row));
  return rows;
}

std::int64_t RandomBatchSampler::index_of(std::int64_t number) const {
  require(number >= 0, "sample {}", number);
  const std::int64_t of_rank = options_.micro_batch_size * options_.micro_batches;
  const std::int64_t of_step = of_rank * options_.data_ranks;
  const std::int64_t in_step = number % of_step;
  const std::int64_t rank = in_step / of_rank;
  const std::int64_t micro_batch = in_step % of_rank / options_.micro_batch_size;
  const std::int64_t consumed = number / of_step * of_step + micro_batch * of_ranks_;
  return index_at(consumed, rank, in_step % options_.micro_batch_size);
}

}  // namespace loom::multimodal
