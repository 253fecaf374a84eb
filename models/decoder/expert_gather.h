// ExpertGather: the tokens of all ranks on each of them, which computes its own experts. Private to models.
//
// Letters  e ranks share E experts (expert_routes.h); T tokens of this rank, as many as of every other.
// Volume   all tokens, choices and weights are gathered, and the results reduce-scattered: cheap for few ranks, and
//          without an exchange of counts.
// Bits     a rank sums over its own experts, and the reduction over the ranks: another order of sums than without.
// Errors   CommError of the group.
#pragma once

#include <functional>

#include "engine/dist/operators.h"
#include "models/decoder/expert_routes.h"

namespace loom::models {

class ExpertGather {
 public:
  // As ExpertRoutes.
  ExpertGather(const comm::Axis& axis, std::int64_t experts, std::string path)
      : routes_(axis, experts, std::move(path)) {}

  using Mlp = std::function<Tensor(Tensor x, const ops::ExpertRows& rows)>;
  // hidden [T, H], choices [T, k], weights [T, k] -> [T, H]: the weighted sum over each token's experts. `mlp` is of
  // this rank's.
  Tensor sum(const Tensor& hidden, const Tensor& choices, const Tensor& weights, const ops::ExpertCapacity& capacity,
             const Mlp& mlp) const;

 private:
  ops::ExpertRows own_rows(const Tensor& choices, const ops::ExpertCapacity& capacity) const;

  const ExpertRoutes routes_;
};

}  // namespace loom::models
