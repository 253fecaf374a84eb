// The bytes of files as token ids: the data of `shardloom train`, and a start for programs of one's own.
//
// Batch    "input_ids" and "targets", both int32 [samples, seq_length] of the host; targets are one byte further.
// Errors   ConfigError for the files (byte_dataset.h), and for --stage.
#pragma once

#include <string_view>

#include "engine/data/options.h"
#include "engine/data/step.h"

namespace loom::data {

// From --data-path, --seq-length, --held-out-fraction and --seed: a train loader, and one for evaluation where a
// fraction is held out.
DataLoaders byte_data_loaders(const DataOptions& options);

// For a program that trains on `data` and never on samples for fine-tuning: ConfigError if --stage needs such samples.
void refuse_samples(const DataOptions& options, std::string_view data);

// Calls a model with input_ids, and where the batch has them with position_ids, actual_seq_len, attention_mask, and the
// pictures and videos of models/qwen_vl/qwen_vl.h.
nn::Value call_with_ids(nn::Module& model, const Batch& batch);

// The forward of a causal language model on such a batch, or one of token_batches.h: input_ids to logits, and their
// cross-entropy with the targets. The model is called as by call_with_ids().
// The loss of a model with nn::RouterLoss has that too, and reports "cross_entropy" and "router_aux_loss" (without its
// coefficient).
ForwardResult next_token_step(DataIterator& data, nn::Module& model);
// The same with the mean over the samples, each of which is the mean over its targets that count; one without any
// counts as 0.
ForwardResult next_token_step_per_sample(DataIterator& data, nn::Module& model);

}  // namespace loom::data
