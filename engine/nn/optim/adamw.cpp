#include "engine/nn/optim/adamw.h"

namespace loom::nn {
namespace {

ParameterGroups one_group(const std::vector<Tensor>& parameters) {
  ParameterGroups groups(1);
  for (const Tensor& parameter : parameters) {
    if (!parameter.requires_grad()) continue;
    groups.front().parameters.push_back({"", parameter, ShardSpec::whole(parameter.shape())});
  }
  return groups;
}

}  // namespace

AdamW::AdamW(ParameterGroups groups, const AdamWOptions& options) : Optimizer(std::move(groups)), rule_(options) {
  for (ParameterGroup& group : this->groups()) {
    if (!group.lr) group.lr = options.lr * group.lr_mult;
    if (!group.weight_decay) group.weight_decay = options.weight_decay;
  }
}

AdamW::AdamW(const std::vector<Tensor>& parameters, const AdamWOptions& options)
    : AdamW(one_group(parameters), options) {}

void AdamW::step() {
  for (const ParameterGroup& group : groups()) rule_.step(group);
}

}  // namespace loom::nn
