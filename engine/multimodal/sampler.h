// RandomBatchSampler: which samples of a data set a rank's micro-batch has: MindSpeed-MM's BaseRandomBatchSampler.
//
// Letters    N samples, micro-batches of b, R data-parallel ranks, c samples consumed by all ranks before the batch.
// Epoch      c div active, with active = N - N mod (b R): what does not fill a batch of all ranks is left out.
// Order      of an epoch: with shuffle torch.randperm of (N div b) b numbers, by the epoch's number as seed; the
//            configured seed is not used, as there. The first `active` entries count.
// Ranks      row j of rank r's batch is entry (c mod active) + j R + r. With data_sharding rank r has a block of
//            (N div (b R)) b samples of its own, all in one order.
// Numbers    of data::DataLoader, which numbers samples over the whole training: index_of() gives the sample that
//            MindSpeed-MM's rank and micro-batch have, where the trainer gives rank r of a step of M micro-batches the
//            numbers behind the step's first + r M b (data::rank_rows).
// Departure  MindSpeed-MM uses all (N div b) b entries, so that some ranks get a batch more than others.
// State      none: the consumed samples are all there is, and the trainer keeps them.
// Memory     8 bytes a sample for each of the last two epochs.
// Threads    const functions are safe from any number of threads.
// Errors     ConfigError at construction: nothing to draw, too many samples to shuffle. InvariantError for others.
// Source     mindspeed_mm/data/dataloader/sampler.py.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace loom::multimodal {

struct SamplerOptions {
  std::string where = "the data set";  // for messages
  std::int64_t samples = 0;
  std::int64_t micro_batch_size = 1;
  std::int64_t data_ranks = 1;
  std::int64_t micro_batches = 1;  // of a step, on each rank
  bool shuffle = false;
  bool data_sharding = false;
};

class RandomBatchSampler {
 public:
  explicit RandomBatchSampler(const SamplerOptions& options);
  ~RandomBatchSampler();
  RandomBatchSampler(RandomBatchSampler&&) noexcept;

  // Samples of an epoch.
  std::int64_t active() const { return active_; }
  // The batch of `rank` after `consumed` samples, a multiple of b R.
  std::vector<std::int64_t> batch(std::int64_t consumed, std::int64_t rank) const;
  // The sample with this number of the training. Before: number >= 0.
  std::int64_t index_of(std::int64_t number) const;

 private:
  class Orders;
  std::int64_t index_at(std::int64_t consumed, std::int64_t rank, std::int64_t row) const;

  SamplerOptions options_;
  std::int64_t of_ranks_ = 0;  // b R
  std::int64_t active_ = 0;
  std::int64_t bucket_ = 0;  // the numbers that are permuted
  std::unique_ptr<Orders> orders_;
};

}  // namespace loom::multimodal
