// KeptResults: the results that selective recompute keeps of one call, so that backward does not recompute them.
// Private to recompute.
//
// First forward   keeping() records the results of fused attention, and, unless only those are kept, of the 1st, 3rd,
//                 5th, ... matrix product of the call (q, v, gate and down of a Llama block). They are held
//                 unchanged: saved-tensor hooks do not see them.
// Second forward  recalling() returns them in the same order, each once; saving them again keeps them alive.
// Errors          RecomputeError: the two forwards differ; a result was written to in between; a second backward, after
//                 the results are freed.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/tensor/kept_results.h"
#include "recompute/checkpoint.h"

namespace loom::recompute {

class KeptResults {
 public:
  KeptResults(std::string path, Keep keep) : path_(std::move(path)), keep_(keep) {}

  // In force during the first forward. `saved`, the tensors that forward has saved so far, is read whenever a result is
  // kept; it outlives the keeper.
  std::unique_ptr<autograd::ResultKeeper> keeping(const std::vector<std::pair<Shape, DType>>& saved);
  // In force during the second forward.
  std::unique_ptr<autograd::ResultKeeper> recalling();

  // Frees the results behind the last of `saved` tensors: a second forward stops before them.
  void drop_behind(std::size_t saved);

 private:
  struct Kept {
    std::vector<Tensor> results;  // empty: freed, or recomputed
    std::vector<std::uint64_t> versions;
    std::size_t saved_before = 0;
    bool taken = false;
  };
  static constexpr int kProducers = 2;

  class Keeping;
  class Recalling;

  const std::string path_;
  const Keep keep_;
  std::array<std::vector<Kept>, kProducers> kept_;
};

}  // namespace loom::recompute
