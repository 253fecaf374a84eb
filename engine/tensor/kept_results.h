// Results of operators that a recompute may keep: the hook of selective activation recompute.
//
// Operators    that are expensive to repeat - matrix products against a weight, fused attention - compute their results
//              through compute_or_recall(). All others are unaffected.
// Keeper       while it is in force, it is called before such an operator computes and notified after; the innermost
//              keeper acts. A recalled result replaces the computation: nothing is launched. The tape records the
//              operator in both cases.
// State        belongs to the rank (RankContext slot).
// Threads      the rank's host thread.
// Source       torch.utils.checkpoint, the dispatch modes of create_selective_checkpoint_contexts.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/tensor/tensor.h"

namespace loom::autograd {

enum class Producer : std::uint8_t { kMatrixProduct, kAttention };

class ResultKeeper {
 public:
  virtual ~ResultKeeper();
  // All results of the operator that is about to compute, from an earlier time; empty: it computes. The tensors are
  // without graph, and handles of the caller's own.
  virtual std::vector<Tensor> recall(Producer producer) = 0;
  virtual void computed(Producer producer, std::span<const Tensor> results) = 0;
};

// `keeper` outlives the scope.
class ResultKeeperScope {
 public:
  explicit ResultKeeperScope(ResultKeeper& keeper);
  ~ResultKeeperScope();
  ResultKeeperScope(const ResultKeeperScope&) = delete;
  ResultKeeperScope& operator=(const ResultKeeperScope&) = delete;
};

// The results of `compute`, or the results that the keeper in force recalls.
std::vector<Tensor> compute_or_recall(Producer producer, const std::function<std::vector<Tensor>()>& compute);

}  // namespace loom::autograd
