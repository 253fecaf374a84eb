// GptDataset: the samples of one part (training, validation, test) of one .bin/.idx pair, as Megatron's GPTDataset has
// them: same tokens in the same order, bit for bit.
//
// Sample    seq_length tokens, and as labels the same tokens one further. Samples run through the sequences without
//           regard to where these end (gpt_indices.h).
// Pad       a label that is the pad id has loss mask 0; pad ids become 0 in tokens and labels. A pad id that is another
//           special id as well masks nothing: those would go out of the loss too.
// EOD       the id between documents: see the three options below.
// State     none: sample i is a function of the files, the options and i.
// Memory    the indices are mapped from their cache (index_cache.h): 24 bytes a sample, 4 a sequence and epoch.
// Threads   const after construction: the rank threads of a process may share one.
// Errors    ConfigError with the flag and the pair: nothing to draw from, a seed of more than 32 bits. Error from
//           fill(): the files changed since they were opened.
// Source    megatron/core/datasets/gpt_dataset.py; departures in docs/formats.md.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/data/data_split.h"
#include "engine/data/gpt_indices.h"
#include "engine/data/index_cache.h"
#include "engine/formats/indexed/indexed_dataset.h"

namespace loom::data {

struct GptSampleOptions {
  std::int64_t seq_length = 0;  // at least 1
  std::uint64_t seed = 1234;
  std::int32_t eod = -1;                     // id at the end of a document; -1: none
  std::int32_t pad = -1;                     // id of padding; -1: none
  std::vector<std::int32_t> special_ids{};   // the other special ids of the tokenizer
  bool reset_position_ids = false;           // positions begin again behind EOD
  bool reset_attention_mask = false;         // nothing is attended that lies before the last EOD
  bool eod_mask_loss = false;                // loss mask 0 where the token is EOD
  bool drop_last_partial_validation = true;  // validation: false pads the last sample instead of dropping it
};

// The pad id that masks: options.pad, or -1 where that is the EOD or another special id.
std::int32_t pad_in_use(const GptSampleOptions& options);

// Where fill() writes: seq_length values each; an empty span is left out.
struct GptSampleRow {
  std::span<std::int32_t> tokens;
  std::span<std::int32_t> labels;
  std::span<float> loss_mask;
  std::span<std::int32_t> position_ids;
  std::span<std::int32_t> attend_from;  // position i attends attend_from[i] to i
};

// The segments of a sample, within which positions attend each other: {3, 5} of attend_from 0 0 0 3 3 3 3 3.
std::vector<std::int32_t> segment_lengths(std::span<const std::int32_t> attend_from);

// Tokens of a share of a pair.
std::int64_t tokens_of(const io::IndexedDataset& pair, const SplitShare& share);

class GptDataset {
 public:
  // `samples`: at least so many; none: one epoch.
  GptDataset(std::shared_ptr<const io::IndexedDataset> pair, DataSplit split, const SplitShare& share,
             std::optional<std::int64_t> samples, const GptSampleOptions& options, const IndexCache& cache);

  const io::IndexedDataset& pair() const { return *pair_; }
  const SequenceRange& range() const { return range_; }
  const GptPlan& plan() const { return plan_; }
  std::int64_t sample_count() const { return plan_.samples; }

  // gpt_indices.h.
  std::span<const std::int32_t> document_index() const { return documents_; }
  std::span<const std::int64_t> sample_index() const { return entries_; }
  std::span<const std::int64_t> shuffle_index() const { return shuffle_; }

  // Before: 0 <= sample < sample_count().
  void fill(std::int64_t sample, const GptSampleRow& row) const;

 private:
  void check_index(bool holds, std::int64_t sample) const;
  void read_tokens(std::int64_t sample, std::span<std::int32_t> tokens) const;

  std::shared_ptr<const io::IndexedDataset> pair_;
  GptSampleOptions options_;
  std::int32_t pad_ = -1;
  SequenceRange range_;
  GptPlan plan_;
  IndexArrays indices_;
  std::span<const std::int32_t> documents_;
  std::span<const std::int64_t> entries_;
  std::span<const std::int64_t> shuffle_;
};

}  // namespace loom::data
