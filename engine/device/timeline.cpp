#include "engine/device/timeline.h"

#include <algorithm>

#include "engine/device/stream.h"

namespace loom::device {

std::int64_t Timeline::add(TimelineEntry entry) {
  entries_.push_back(entry);
  return first_entry_ + static_cast<std::int64_t>(entries_.size()) - 1;
}

std::int64_t Timeline::add_on(StreamId stream, TimelineEntry entry) {
  entry.stream = stream;
  return last_[static_cast<std::size_t>(stream)] = add(entry);
}

void Timeline::add_work(StreamId stream, const StreamItem& item) {
  if (!enabled_ || item.name.empty()) return;
  TimelineEntry entry;
  entry.name = number_of(item.name);
  entry.subject = number_of(item.subject);
  entry.cost = item.cost;
  if (item.collective && item.collective->ranks->size() > 1) {
    entry.collective = item.collective->kind;
    entry.bytes = item.collective->bytes;
    entry.group = number_of(*item.collective->ranks);
  }
  add_on(stream, entry);
}

void Timeline::add_kernel(StreamId stream, std::string_view name, const Cost& cost) {
  if (!enabled_) return;
  TimelineEntry entry;
  entry.name = number_of(name);
  entry.cost = cost;
  add_on(stream, entry);
}

void Timeline::add_stream_wait(StreamId stream, std::int64_t other) {
  if (!enabled_ || other == kDone) return;
  TimelineEntry entry;
  entry.kind = TimelineKind::kStreamWait;
  entry.other = other;
  add_on(stream, entry);
}

void Timeline::add_host_work(std::string_view name, const Cost& cost) {
  if (!enabled_) return;
  TimelineEntry entry;
  entry.kind = TimelineKind::kHostWork;
  entry.name = number_of(name);
  entry.cost = cost;
  add(entry);
}

void Timeline::add_host_wait(std::int64_t other) {
  if (!enabled_ || other == kDone) return;
  TimelineEntry entry;
  entry.kind = TimelineKind::kHostWait;
  entry.other = other;
  add(entry);
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
