// KeptCall: what recompute keeps of a call: its arguments and the state of random numbers. Private to recompute.
//
// Arguments  the tensors are taken out of their containers, each once however often it is given; the remainder has
//            places without bytes.
// Saved      the tensors go through the saved-tensor hooks in force when save() is called: a checkpoint inside another
//            one keeps nothing of its own.
#pragma once

#include <span>
#include <vector>

#include "engine/core/rng_state.h"
#include "engine/nn/value.h"
#include "engine/tensor/autograd.h"

namespace loom::recompute {

class KeptCall {
 public:
  // `tensors` receives the tensors of `args`.
  KeptCall(const nn::Args& args, std::vector<Tensor>& tensors);

  // Leaves with the bytes of `tensors` (the constructor's, as they come back from the tape) that require grad
  // if the arguments did.
  std::vector<Tensor> leaves(std::span<const Tensor> tensors) const;
  // The arguments, with `tensors` in their places.
  nn::Args filled(std::span<const Tensor> tensors) const;
  const RngState& rng() const { return rng_; }

 private:
  nn::Args args_;                      // every tensor replaced by one without bytes
  std::vector<std::size_t> index_of_;  // place, in the order of map_tensors -> tensor
  std::vector<bool> requires_grad_;    // of each tensor
  RngState rng_;
};

}  // namespace loom::recompute
