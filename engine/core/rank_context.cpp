#include "engine/core/rank_context.h"

#include <utility>

#include "engine/core/error.h"

namespace loom {
namespace {
thread_local RankContext* t_current = nullptr;
}  // namespace

RankContext::~RankContext() {
  while (!at_end_.empty()) {
    const std::function<void()> stop = std::move(at_end_.back());
    at_end_.pop_back();
    stop();
  }
}

void RankContext::at_end(std::function<void()> stop) { at_end_.push_back(std::move(stop)); }

RankContext* RankContext::current_or_null() { return t_current; }

RankContext& RankContext::current() {
  require(t_current != nullptr, "no rank is current on this thread; open a RankScope first");
  return *t_current;
}

RankScope::RankScope(RankContext& context) : previous_(t_current) { t_current = &context; }
RankScope::~RankScope() { t_current = previous_; }

}  // namespace loom
