// TapeState: the tape's state of a rank. Private to engine/tensor.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/core/rank_context.h"
#include "engine/tensor/autograd.h"

namespace loom::autograd {

// A running backward, as its operators see it.
class GradientSums {
 public:
  virtual ~GradientSums() = default;
  // add_gradient_to() of the node that runs.
  virtual Tensor take(std::size_t input, const Tensor& gradient) = 0;
  // take_gradient_sum() of it.
  virtual Tensor take_away(std::size_t input) = 0;
};

struct GraphTask {
  std::uint64_t id = 0;
  GradientSums* sums = nullptr;
  std::vector<std::function<void()>> callbacks;
  bool is_captured = false;  // gradients_of(): nothing is accumulated
};

// Which of a node's gradients its backward computes; without it all, once.
struct NodePart {
  std::vector<bool> needs;  // by edge
  bool is_rest = false;     // the others were computed before
  bool runs_again = false;  // the others are computed later: the node keeps what it saved until then
};

struct TapeState {
  bool grad_enabled = true;
  bool grad_deferred = false;  // off, and backward will run it again
  bool in_function = false;    // a FunctionScope lives
  std::uint64_t next_sequence = 0;
  std::uint64_t next_task = 1;
  std::vector<SavedTensorHooks> saved_hooks;
  std::vector<GraphTask> tasks;    // innermost last
  const NodePart* part = nullptr;  // of the node that runs; null: all of it

  static TapeState& current() { return RankContext::current().slot<TapeState>(); }
};

// Leaves' gradients go before everything else.
inline constexpr std::uint64_t kAccumulateFirst = ~std::uint64_t{0};

// The node behind a tensor that requires grad: its own, or the accumulator of a leaf (made at first use). Null
// otherwise.
Edge gradient_edge(const Tensor& tensor);

}  // namespace loom::autograd
