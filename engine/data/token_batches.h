// Samples of token ids as batches: the data of `shardloom train` from .bin/.idx pairs, for pretraining, for fine-tuning
// and for preferences.
//
// Batch       "input_ids" and "targets", both int32 [samples, seq_length] of the host; targets are one token further,
//             and -100 where nothing is learnt (the loss mask). With variable_seq_lengths rows are shorter.
//             "position_ids", int32 of that shape, with reset_position_ids or neat_pack.
//             "actual_seq_len", a list of whole numbers, with reset_attention_mask or neat_pack: where segments end
//             (models/decoder/decoder.h).
//             "lengths" and "numbers" of pairs: see preference_data_loaders() and outcome_reward_data_loaders().
// Loss        the mean over the targets that count, of a whole step: DataLoaders::count_tokens.
// Evaluation  begins at sample 0 each time.
// Errors      ConfigError as in gpt_data.h and sft_data.h, and for options that need an id that no tokenizer gives.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/data/data_split.h"
#include "engine/data/options.h"
#include "engine/data/step.h"

namespace loom::data {

// The ids of a tokenizer.
struct TokenIds {
  std::int32_t eod = -1;                  // at the end of a document; -1: not known
  std::int32_t pad = -1;                  // -1: none
  std::vector<std::int32_t> others = {};  // the other special ids
  // For process rewards: the token at which labels count (none: any), and the allowed labels (empty: any).
  std::optional<std::int32_t> placeholder = {};
  std::vector<std::int32_t> rewards = {};
};

// How many samples a run reads of each part; 0: the part is left out.
using SampleCounts = PerSplit<std::int64_t>;

struct RunLength {
  std::int64_t train_samples = 0;  // 0: train_iters global batches
  bool skip_train = false;         // none
  std::int64_t train_iters = 1;
  std::int64_t eval_interval = 1;
  std::int64_t eval_iters = 0;
  std::int64_t global_batch_size = 1;
};
// The same numbers as Megatron's, so that the indices are equal.
SampleCounts sample_counts(const RunLength& run);

// Samples of an epoch of the training data, whatever its kind: bytes of text, pairs, or lines of samples. ConfigError
// as the loaders below, and for a blend with weights, which has no epoch.
std::int64_t epoch_samples(const DataOptions& options, std::int64_t global_batch_size);

// Loaders of .bin/.idx pairs.
DataLoaders token_data_loaders(const DataOptions& options, const TokenIds& ids, const SampleCounts& counts);
// Loaders of samples for fine-tuning. `global_batch_size`: for padded_samples.
DataLoaders instruction_data_loaders(const DataOptions& options, const TokenIds& ids, const SampleCounts& counts,
                                     std::int64_t global_batch_size);
// Loaders of preferences. A batch has the rows of its samples' chosen answers, then the rows of the rejected answers;
// the loss of a step is the mean over its samples. With numbered_samples: DataLoaders::numbered; a pair's number is its
// line in the files of --train-data-path, --valid-data-path and --test-data-path, one behind another.
DataLoaders preference_data_loaders(const DataOptions& options, const TokenIds& ids, const SampleCounts& counts,
                                    std::int64_t global_batch_size);

// The same for outcome rewards, with "lengths", a list of whole numbers: the tokens of each row before its padding.
DataLoaders outcome_reward_data_loaders(const DataOptions& options, const TokenIds& ids, const SampleCounts& counts,
                                        std::int64_t global_batch_size);

// Loaders of process rewards: target i is the label of token i, not of the next token. ConfigError, from a loader, for
// a label outside of ids.rewards, and for a sample without a label at ids.placeholder.
DataLoaders process_reward_data_loaders(const DataOptions& options, const TokenIds& ids, const SampleCounts& counts,
                                        std::int64_t global_batch_size);

// Targets of a batch that count; of a batch of shapes, all.
TokenCounts count_targets(const Batch& batch);

}  // namespace loom::data
