#include "sharding/reuse_fp32.h"

#include <exception>
#include <functional>

#include "sharding/fsdp/fsdp_state.h"

namespace loom::sharding {
namespace {

void for_each_splitting(nn::Module& root, const std::function<void(Param&)>& visit) {
  for (FsdpState* state : FsdpState::collect(root)) {
    if (state->group() == nullptr) continue;
    for (const auto& param : state->group()->params()) {
      if (param->splits()) visit(*param);
    }
  }
}

}  // namespace

void split_shards(nn::Module& root) {
  for_each_splitting(root, [](Param& param) {
    if (!param.is_split()) param.split_shard();
  });
}

void join_shards(nn::Module& root) {
  for_each_splitting(root, [](Param& param) {
    if (param.is_split()) param.join_shard();
  });
}

bool has_split_shards(nn::Module& root) {
  bool found = false;
  for_each_splitting(root, [&](const Param& param) { found = found || param.is_split(); });
  return found;
}

JoinedShards::JoinedShards(nn::Module& root) : root_(root), were_split_(has_split_shards(root)) {
  if (were_split_) join_shards(root);
}

// A step that ends with an error leaves them as they are: nothing reads them any more.
JoinedShards::~JoinedShards() {
  if (were_split_ && std::uncaught_exceptions() == 0) split_shards(root_);
}

}  // namespace loom::sharding
