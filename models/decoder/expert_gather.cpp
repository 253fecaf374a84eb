#include "models/decoder/expert_gather.h"

#include <algorithm>
#include <numeric>

namespace loom::models {

// Choices of other ranks' experts are dropped here.
ops::ExpertRows ExpertGather::own_rows(const Tensor& choices, const ops::ExpertCapacity& capacity) const {
  std::vector<std::int64_t> own(static_cast<std::size_t>(choices.numel()), -1);
  std::int64_t count = 0;
  if (choices.raw() != nullptr) {
    own = choices.to_vector<std::int64_t>();
    for (std::int64_t& expert : own) {
      const std::int64_t here = expert - routes_.first();
      expert = here >= 0 && here < routes_.own() ? here : -1;
      count += expert >= 0 ? 1 : 0;
    }
  } else {
    await_values(choices);
    const std::vector<std::int64_t> planned = routes_.planned(choices.numel() / routes_.ranks().size(), capacity);
    const auto first = planned.begin() + routes_.first();
    count = std::accumulate(first, first + routes_.own(), std::int64_t{0}) * routes_.ranks().size();
  }
  return ops::sort_by_expert(Tensor::from(own, choices.shape()), routes_.own(),
                             {.rows = std::max<std::int64_t>(count, 1)});
}

Tensor ExpertGather::sum(const Tensor& hidden, const Tensor& choices, const Tensor& weights,
                         const ops::ExpertCapacity& capacity, const Mlp& mlp) const {
  const auto all = [this](const Tensor& x) { return dist::all_gather(x, 0, routes_.ranks(), routes_.path()); };
  const ops::ExpertRows rows = own_rows(all(choices), capacity);
  const Tensor all_weights = all(weights);
  const Tensor sums = ops::combine_tokens(mlp(ops::gather_tokens(all(hidden), rows), rows), all_weights, rows);
  return dist::reduce_scatter(sums, 0, routes_.ranks(), routes_.path());
}

}  // namespace loom::models
