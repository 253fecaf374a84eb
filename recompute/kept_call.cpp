#include "recompute/kept_call.h"

#include <unordered_map>

#include "engine/core/error.h"

namespace loom::recompute {

KeptCall::KeptCall(const nn::Args& args, std::vector<Tensor>& tensors) : args_(args), rng_(RngState::current()) {
  std::unordered_map<const void*, std::size_t> seen;
  args_.map_tensors([&](const Tensor& tensor) {
    const auto [found, is_new] = seen.emplace(tensor.id(), tensors.size());
    if (is_new) {
      tensors.push_back(tensor);
      requires_grad_.push_back(tensor.requires_grad());
    }
    index_of_.push_back(found->second);
    return Tensor::meta({}, tensor.dtype());
  });
}

std::vector<Tensor> KeptCall::leaves(std::span<const Tensor> tensors) const {
  require(tensors.size() == requires_grad_.size(), "{} tensors for a call with {}", tensors.size(),
          requires_grad_.size());
  std::vector<Tensor> leaves;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    leaves.push_back(tensors[i].detach());
    if (requires_grad_[i]) leaves.back().set_requires_grad(true);
  }
  return leaves;
}

nn::Args KeptCall::filled(std::span<const Tensor> tensors) const {
  nn::Args args = args_;
  std::size_t place = 0;
  args.map_tensors([&](const Tensor&) { return tensors[index_of_[place++]]; });
  return args;
}

}  // namespace loom::recompute
