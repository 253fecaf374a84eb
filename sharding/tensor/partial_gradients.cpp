#include <algorithm>
#include <utility>

#include "engine/dist/operators.h"
#include "engine/tensor/autograd.h"
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/general.h"
#include "sharding/fsdp/fsdp_state.h"
#include "sharding/tensor/share_matrices.h"

namespace loom::sharding {
namespace {

// In host memory one by one: nothing of the device's is used.
void sum_over(const std::shared_ptr<comm::ProcessGroup>& ranks, const std::vector<Tensor>& gradients) {
  const autograd::NoGrad unrecorded;
  std::vector<Tensor> flat;
  std::vector<std::int64_t> sizes;
  for (const Tensor& gradient : gradients) {
    if (gradient.storage()->place() == Place::kHost) {
      ranks->all_reduce(comm::kHostLane, gradient.raw(), gradient.numel(), gradient.dtype(), comm::ReduceOp::sum(),
                        "partial gradients");
      continue;
    }
    flat.push_back(ops::reshape(gradient, {gradient.numel()}));
    sizes.push_back(gradient.numel());
  }
  if (flat.empty()) return;
  const Tensor all = dist::all_reduce(ops::concat(flat, 0), {ranks}, "partial gradients", dist::Loss::kOfAll);
  const std::vector<Tensor> parts = sizes.size() == 1 ? std::vector<Tensor>{all} : ops::split(all, sizes, 0);
  for (std::size_t i = 0; i < flat.size(); ++i) flat[i].copy_from(parts[i]);
}

}  // namespace

void sum_partial_gradients(nn::Module& root) {
  const auto shares = root.attachment<TensorShares>();
  if (shares == nullptr) return;
  std::vector<std::pair<std::shared_ptr<comm::ProcessGroup>, std::vector<Tensor>>> by_ranks;
  for (FsdpState* state : FsdpState::collect(root)) {
    if (state->group() == nullptr) continue;
    for (const auto& param : state->group()->params()) {
      const auto found = shares->shares.find(param->home().slots.front());
      if (found == shares->shares.end() || found->second.sums == nullptr) continue;
      param->wait_for_shard_grad();
      const Tensor gradient = param->sharded().grad();
      if (!gradient.defined() || gradient.numel() == 0) continue;
      auto entry = std::ranges::find(by_ranks, found->second.sums, [](const auto& e) { return e.first; });
      if (entry == by_ranks.end()) entry = by_ranks.insert(entry, {found->second.sums, {}});
      entry->second.push_back(gradient);
    }
  }
  for (const auto& [ranks, gradients] : by_ranks) sum_over(ranks, gradients);
}

int copies_of(const TensorShares* shares, const nn::ParamSlot& slot) {
  if (shares == nullptr) return 1;
  const auto found = shares->shares.find(&slot);
  return found == shares->shares.end() ? 1 : found->second.copies;
}

}  // namespace loom::sharding
