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
  while (!owned_.empty()) {
    const Owned last = owned_.back();
    owned_.pop_back();
    last.end(last.value);
  }
}

std::size_t RankContext::next_slot_index() {
  static std::atomic<std::size_t> next{0};
  const std::size_t index = next.fetch_add(1);
  require(index < kMaxSlots, "more than {} types have a slot of the rank; raise RankContext::kMaxSlots", kMaxSlots);
  return index;
}

void* RankContext::make_slot(std::size_t index, Owned (*make)()) {
  const std::lock_guard lock(making_);
  if (void* held = slots_[index].load(std::memory_order_relaxed)) return held;
  owned_.push_back(make());
  slots_[index].store(owned_.back().value, std::memory_order_release);
  return owned_.back().value;
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
