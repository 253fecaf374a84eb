#include "engine/core/rank_context.h"

#include "engine/core/error.h"

namespace loom {
namespace {
thread_local RankContext* t_current = nullptr;
}  // namespace

RankContext* RankContext::current_or_null() { return t_current; }

RankContext& RankContext::current() {
  require(t_current != nullptr, "no rank is current on this thread; open a RankScope first");
  return *t_current;
}

RankScope::RankScope(RankContext& context) : previous_(t_current) { t_current = &context; }
RankScope::~RankScope() { t_current = previous_; }

}  // namespace loom
