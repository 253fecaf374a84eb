// Cross-entropy of logits whose columns lie with several ranks: what a rank computes between their exchanges.
//
// Statistics  of a row: its largest logit, the sum of exp(logit - largest), and its target's logit; [rows] each, fp32
//             (fp64 for fp64). A rank computes them of its own columns. From those of all ranks every rank computes the
//             same loss.
// Padding     a column of an id outside the vocabulary counts nothing, and its gradient is zero.
// Ignored     a row whose target is `ignore_index` counts nothing: its statistics are 0, its gradient is zero.
// Threads     cut by shape alone; the loss is summed in double, in an order that depends on `rows` only.
// Errors      ConfigError for a target outside [0, vocab).
#pragma once

#include <cstdint>

#include "engine/kernels/fused.h"

namespace loom::kernels {

// Logits [rows, cols]: column c is of the id first + c. Targets int32 or int64 [rows], ids of the whole vocabulary.
struct VocabularyPart {
  DType dtype = DType::kF32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t first = 0;
  std::int64_t vocab = 0;
  DType target_dtype = DType::kI64;
  std::int64_t ignore_index = -100;
};

// In one pass over the logits. Without a column of the vocabulary the largest is -inf and the sum 0; the target's logit
// is 0 where another rank has it.
void vocabulary_statistics(const VocabularyPart& op, const void* logits, const void* targets, void* largest, void* sum,
                           void* target_logit);
// A rank's sum, of its own largest logits, as one of all ranks' largest ones.
void vocabulary_rescale(const VocabularyPart& op, const void* own_largest, const void* largest, void* sum);
// From the statistics of all ranks.
CrossEntropySum vocabulary_loss(const VocabularyPart& op, const void* targets, const void* largest, const void* sum,
                                const void* target_logit);
// dlogits = (softmax - onehot) * row_scale; may be logits.
void vocabulary_gradient(const VocabularyPart& op, const void* logits, const void* targets, const void* largest,
                         const void* sum, double row_scale, void* dlogits);

}  // namespace loom::kernels
