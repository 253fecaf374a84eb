// Tensor parallelism: the ranks that share matrices, and the modules that meet parts of hidden states.
//
// Ranks     t neighbours read the same samples; each has some rows or columns of the matrices, and computes all tokens
//           on them. With sequence_parallel the hidden states between attention and MLP blocks are cut along the
//           sequence: part r of S / t tokens each.
// Slot      attached by the author of a module whose code depends on the length of a sequence, or that adds up figures
//           of tokens; set where ranks share matrices (sharding/tensor/share_matrices.h), and empty otherwise.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/dist/channel.h"

namespace loom::dist {

struct TensorRanks {
  Channel ranks;
  bool sequence_parallel = false;
  // Of linear layers under sequence_parallel (sliced_products.h).
  int slices = 1;
  bool gathers_again = false;
};

struct TensorSlot {
  std::shared_ptr<const TensorRanks> shared = nullptr;
  std::int64_t heads = 0;  // of an attention without a ContextSlot

  int ranks() const { return shared == nullptr ? 1 : shared->ranks.size(); }
  int rank() const { return shared == nullptr ? 0 : shared->ranks.rank(); }
  bool cuts_tokens() const { return shared != nullptr && shared->sequence_parallel; }
  // Of `length` tokens, those of a rank's hidden states between blocks.
  std::int64_t own_length(std::int64_t length) const { return cuts_tokens() ? length / ranks() : length; }
  // Tokens of a whole sequence, of which the module has `length`.
  std::int64_t whole_length(std::int64_t length) const { return cuts_tokens() ? length * ranks() : length; }
};

}  // namespace loom::dist
