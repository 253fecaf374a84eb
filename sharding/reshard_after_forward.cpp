#include "sharding/reshard_after_forward.h"

#include "engine/core/error.h"

namespace loom::sharding {

ReshardAfterForward::ReshardAfterForward(int ranks) : ranks_(ranks) {
  if (ranks < 1) config_error("reshard_after_forward is {}; use true, false or a number of ranks of at least 1", ranks);
}

std::optional<ReshardAfterForward> ReshardAfterForward::on(int shard_size) const {
  if (ranks_ <= 0) return *this;
  if (shard_size % ranks_ != 0) return std::nullopt;
  if (ranks_ == 1) return never();
  return ranks_ == shard_size ? always() : *this;
}

std::string ReshardAfterForward::text() const {
  if (ranks_ > 0) return std::to_string(ranks_);
  return ranks_ == kAlways ? "true" : "false";
}

}  // namespace loom::sharding
