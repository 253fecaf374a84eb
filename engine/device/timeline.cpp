#include "engine/device/timeline.h"

#include <algorithm>
#include <chrono>

#include "engine/core/error.h"
#include "engine/device/stream.h"

namespace loom::device {

std::int64_t wall_clock_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void Timeline::enable(bool on, Recording what) {
  enabled_ = on;
  if (!on) return;
  require(entries_.empty() || what.wall == !wall_.empty(), "wall times of a part of the timeline");
  what_ = std::move(what);
}

WallTime* Timeline::add(TimelineEntry entry) {
  entry.site = call_site();
  entries_.push_back(entry);
  if (!what_.wall) return nullptr;
  const std::int64_t now = wall_clock_ns();
  return &wall_.emplace_back(WallTime{now, now, now});
}

WallTime* Timeline::add_on(StreamId stream, TimelineEntry entry) {
  entry.stream = stream;
  last_[static_cast<std::size_t>(stream)] = first_entry_ + static_cast<std::int64_t>(entries_.size());
  return add(entry);
}

std::int32_t Timeline::call_site() {
  if (!enabled_ || !what_.call_site) return 0;
  const std::int32_t own = number_of(what_.call_site());
  return own != 0 ? own : inherited_site_;
}

WallTime* Timeline::add_work(StreamId stream, const StreamItem& item) {
  if (!enabled_ || item.name.empty()) return nullptr;
  TimelineEntry entry;
  entry.name = number_of(item.name);
  entry.subject = number_of(item.subject);
  entry.cost = item.cost;
  if (item.collective && item.collective->ranks->size() > 1) {
    entry.collective = item.collective->kind;
    entry.bytes = item.collective->bytes;
    entry.group = number_of(*item.collective->ranks);
  }
  return add_on(stream, entry);
}

WallTime* Timeline::add_kernel(StreamId stream, std::string_view name, const Cost& cost) {
  if (!enabled_) return nullptr;
  TimelineEntry entry;
  entry.name = number_of(name);
  entry.cost = cost;
  return add_on(stream, entry);
}

WallTime* Timeline::add_stream_wait(StreamId stream, std::int64_t other) {
  if (!enabled_ || other == kDone) return nullptr;
  TimelineEntry entry;
  entry.kind = TimelineKind::kStreamWait;
  entry.other = other;
  return add_on(stream, entry);
}

WallTime* Timeline::add_host_work(std::string_view name, const Cost& cost) {
  if (!enabled_) return nullptr;
  TimelineEntry entry;
  entry.kind = TimelineKind::kHostWork;
  entry.name = number_of(name);
  entry.cost = cost;
  return add(entry);
}

WallTime* Timeline::add_host_wait(std::int64_t other) {
  if (!enabled_ || other == kDone) return nullptr;
  TimelineEntry entry;
  entry.kind = TimelineKind::kHostWait;
  entry.other = other;
  return add(entry);
}

void Timeline::add_mark(std::string_view name, std::string_view subject) {
  if (!enabled_) return;
  TimelineEntry entry;
  entry.kind = TimelineKind::kMark;
  entry.name = number_of(name);
  entry.subject = number_of(subject);
  add(entry);
}

void Timeline::clear() {
  first_entry_ += static_cast<std::int64_t>(entries_.size());
  entries_.clear();
  wall_.clear();
  std::fill(std::begin(last_), std::end(last_), kDone);
}

std::int32_t Timeline::number_of(std::string_view text) {
  const auto found = text_numbers_.find(text);
  if (found != text_numbers_.end()) return found->second;
  const auto number = static_cast<std::int32_t>(texts_.size());
  texts_.emplace_back(text);
  text_numbers_.emplace(std::string(text), number);
  return number;
}

std::int32_t Timeline::number_of(const std::vector<int>& ranks) {
  const auto known = group_numbers_.find(&ranks);
  if (known != group_numbers_.end() && groups_[static_cast<std::size_t>(known->second)] == ranks) return known->second;
  auto at = std::find(groups_.begin(), groups_.end(), ranks);
  if (at == groups_.end()) at = groups_.insert(groups_.end(), ranks);
  return group_numbers_[&ranks] = static_cast<std::int32_t>(at - groups_.begin());
}

}  // namespace loom::device
