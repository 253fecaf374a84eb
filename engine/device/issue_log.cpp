#include "engine/device/issue_log.h"

#include <algorithm>
#include <chrono>

#include "engine/core/error.h"
#include "engine/device/recorder.h"
#include "engine/device/stream.h"

namespace loom::device {
namespace {

WorkKind work_of(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllGather:
      return WorkKind::kAllGather;
    case CollectiveKind::kReduceScatter:
      return WorkKind::kReduceScatter;
    case CollectiveKind::kAllReduce:
      return WorkKind::kAllReduce;
    case CollectiveKind::kAllToAll:
      return WorkKind::kAllToAll;
    case CollectiveKind::kSendRecv:
    case CollectiveKind::kMessage:
      return WorkKind::kSendRecv;
  }
  return WorkKind::kOther;
}

// Removes `count` elements; they are destroyed.
template <class T>
void pop_front(std::deque<T>& elements, std::int64_t count) {
  elements.erase(elements.begin(), elements.begin() + static_cast<std::ptrdiff_t>(count));
}

}  // namespace

std::int64_t wall_clock_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

IssueLog::~IssueLog() {
  if (notes_memory_) memory_->observe_changes({});
  if (notes_allocator_) memory_->observe_allocator({});
}

// --- issued entries

WallSlot IssueLog::add(Entry entry) {
  entry.site = call_site();
  Logged& logged = entries_.emplace_back(Logged{entry, nullptr});
  if (!notes_wall_) return nullptr;
  const std::int64_t now = wall_clock_ns();
  logged.wall = std::make_shared<WallTime>(WallTime{now, now, now});
  return logged.wall;
}

WallSlot IssueLog::add_on(StreamId stream, Entry entry) {
  entry.stream = stream;
  last_[stream.place()] = next().entry;
  return add(entry);
}

std::int32_t IssueLog::call_site() {
  if (!notes_entries_ || sites_ == nullptr) return 0;
  const std::int32_t own = number_of((*sites_)());
  return own != 0 ? own : inherited_site_;
}

WallSlot IssueLog::add_item(StreamId stream, const StreamItem& item) {
  if (!notes_entries_ || item.name.empty()) return nullptr;
  Entry entry;
  entry.kind = stream == StreamId::kCompute ? EntryKind::kKernel : EntryKind::kCopy;
  entry.name = number_of(item.name);
  entry.subject = number_of(item.subject);
  entry.cost = item.cost;
  if (item.collective) {
    entry.cost.work = work_of(item.collective->kind);
    if (item.collective->ranks->size() > 1) {
      entry.kind = EntryKind::kCollective;
      entry.collective = item.collective->kind;
      entry.bytes = item.collective->bytes;
      entry.group = number_of(*item.collective->ranks);
      entry.axis = number_of(item.collective->axis);
    }
  }
  return add_on(stream, entry);
}

WallSlot IssueLog::add_kernel(StreamId stream, std::string_view name, const Cost& cost) {
  if (!notes_entries_) return nullptr;
  Entry entry;
  entry.kind = stream == StreamId::kCompute ? EntryKind::kKernel : EntryKind::kCopy;
  entry.name = number_of(name);
  entry.cost = cost;
  return add_on(stream, entry);
}

WallSlot IssueLog::add_stream_wait(StreamId stream, std::int64_t number) {
  if (!notes_entries_ || number == kDone) return nullptr;
  Entry entry;
  entry.kind = EntryKind::kStreamWait;
  entry.other = number;
  return add_on(stream, entry);
}

WallSlot IssueLog::add_host_work(std::string_view name, const Cost& cost) {
  if (!notes_entries_) return nullptr;
  Entry entry;
  entry.kind = EntryKind::kHostWork;
  entry.name = number_of(name);
  entry.cost = cost;
  return add(entry);
}

WallSlot IssueLog::add_host_wait(std::int64_t number) {
  if (!notes_entries_ || number == kDone) return nullptr;
  Entry entry;
  entry.kind = EntryKind::kHostWait;
  entry.other = number;
  return add(entry);
}

void IssueLog::set_bytes_of_message(std::int64_t number, std::int64_t bytes) {
  const std::int64_t at = number - first_.entry;
  if (number == kDone || at < 0 || at >= static_cast<std::int64_t>(entries_.size())) return;
  Entry& entry = entries_[static_cast<std::size_t>(at)].entry;
  entry.bytes = bytes;
  entry.cost.link_bytes = bytes;
}

void IssueLog::add_phase(std::string_view name) {
  if (!notes_entries_) return;
  Entry entry;
  entry.kind = EntryKind::kPhase;
  entry.name = number_of(name);
  add(entry);
}

void IssueLog::add_mark(const NewMark& mark) {
  if (!notes_marks_) return;
  marks_.push_back(
      {mark.kind, number_of(mark.subject), next().entry, mark.bytes, mark.dtype, mark.count, mark.prefetched});
}

MemorySample IssueLog::sample() const {
  const MemStats stats = memory_->stats();
  return {.entries = next().entry,
          .by_category = stats.by_category,
          .allocated_bytes = stats.allocator.allocated_bytes,
          .reserved_bytes = stats.allocator.reserved_bytes,
          .cache_flushes = stats.allocator.cache_flushes,
          .wall_ns = notes_wall_ ? wall_clock_ns() : 0};
}

void IssueLog::note_change(const AllocatorChange& change, MemCategory category, std::string_view what) {
  AllocatorEvent event{.change = change, .entries = next().entry, .origin = {}};
  if (change.action == AllocatorAction::kAlloc) {
    event.origin = {category, number_of(what), call_site(), next().event};
    origins_[change.address] = event.origin;
  } else if (change.action == AllocatorAction::kFree) {
    event.origin = origin_of(change.address);
    origins_.erase(change.address);
  }
  events_.push_back(event);
}

AllocatorOrigin IssueLog::origin_of(std::int64_t address) const {
  const auto known = origins_.find(address);
  return known == origins_.end() ? AllocatorOrigin{} : known->second;
}

// --- Who records

IssueLog::Position IssueLog::next() const {
  return {first_.entry + static_cast<std::int64_t>(entries_.size()),
          first_.mark + static_cast<std::int64_t>(marks_.size()),
          first_.sample + static_cast<std::int64_t>(samples_.size()),
          first_.event + static_cast<std::int64_t>(events_.size())};
}

void IssueLog::recorders_changed() {
  wants_entries_ = notes_marks_ = notes_wall_ = false;
  sites_ = nullptr;
  bool memory = false, allocator = false;
  for (const Recorder* recorder : recorders_) {
    if (!recorder->running_) continue;
    const RecorderOptions& asked = recorder->options_;
    notes_marks_ = true;
    wants_entries_ = wants_entries_ || asked.entries;
    notes_wall_ = notes_wall_ || asked.wall;
    memory = memory || asked.memory;
    allocator = allocator || asked.allocator;
    if (sites_ == nullptr && asked.call_site) sites_ = &asked.call_site;
  }
  notes_entries_ = wants_entries_ && pauses_ == 0;
  drop_unneeded();
  if (allocator != notes_allocator_) watch_allocator(allocator);
  if (memory == notes_memory_) return;
  require(memory_ != nullptr, "this log has no memory to watch");
  notes_memory_ = memory;
  memory_->observe_changes(memory ? std::function<void()>([this] { samples_.push_back(sample()); }) : nullptr);
}

void IssueLog::watch_allocator(bool on) {
  require(memory_ != nullptr, "this log has no memory to watch");
  notes_allocator_ = on;
  origins_.clear();
  if (!on) return memory_->observe_allocator({});
  memory_->observe_allocator([this](const AllocatorChange& change, MemCategory category, std::string_view what) {
    note_change(change, category, what);
  });
}

void IssueLog::drop_unneeded() {
  Position needed = next();
  for (const Recorder* recorder : recorders_) {
    if (recorder->ranges_.empty()) continue;
    const Position& from = recorder->ranges_.front().from;
    needed = {std::min(needed.entry, from.entry), std::min(needed.mark, from.mark),
              std::min(needed.sample, from.sample), std::min(needed.event, from.event)};
  }
  pop_front(entries_, needed.entry - first_.entry);
  pop_front(marks_, needed.mark - first_.mark);
  pop_front(samples_, needed.sample - first_.sample);
  pop_front(events_, needed.event - first_.event);
  first_ = needed;
}

// --- Texts and groups

std::int32_t IssueLog::number_of(std::string_view text) {
  const auto found = text_numbers_.find(text);
  if (found != text_numbers_.end()) return found->second;
  const auto number = static_cast<std::int32_t>(texts_.size());
  texts_.emplace_back(text);
  text_numbers_.emplace(std::string(text), number);
  return number;
}

std::int32_t IssueLog::number_of(const std::vector<int>& ranks) {
  const auto known = group_numbers_.find(&ranks);
  if (known != group_numbers_.end() && groups_[static_cast<std::size_t>(known->second)] == ranks) return known->second;
  auto at = std::find(groups_.begin(), groups_.end(), ranks);
  if (at == groups_.end()) at = groups_.insert(groups_.end(), ranks);
  return group_numbers_[&ranks] = static_cast<std::int32_t>(at - groups_.begin());
}

}  // namespace loom::device
