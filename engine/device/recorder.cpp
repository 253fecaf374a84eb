#include "engine/device/recorder.h"

#include <algorithm>

#include "engine/core/error.h"

namespace loom::device {

// Makes a recording of ranges of the log: numbers become indices.
class Recorder::Assembly {
 public:
  Assembly(const IssueLog& log, const RecorderOptions& options) : log_(log), options_(options) {
    recording_.texts = log.texts_;
    recording_.groups = log.groups_;
    std::fill(std::begin(last_), std::end(last_), kDone);
  }

  void add(const Range& range) {
    Part& part = parts_.emplace_back();
    part.first = range.from.entry;
    if (options_.memory) add_sample(range.begin, size());
    if (options_.entries) {
      for (std::int64_t number = range.from.entry; number < range.to.entry; ++number) add_entry(part, number);
    }
    part.size_before.push_back(size());
    for (std::int64_t number = range.from.mark; number < range.to.mark; ++number) {
      Mark mark = log_.marks_[static_cast<std::size_t>(number - log_.first_.mark)];
      mark.entries = entries_before(part, mark.entries);
      recording_.marks.push_back(mark);
    }
    if (options_.allocator) add_events(range, part);
    if (!options_.memory) return;
    for (std::int64_t number = range.from.sample; number < range.to.sample; ++number) {
      const MemorySample& sample = log_.samples_[static_cast<std::size_t>(number - log_.first_.sample)];
      add_sample(sample, entries_before(part, sample.entries));
    }
  }

  void add_segments(std::vector<AllocatorSegment> segments) {
    for (AllocatorSegment& segment : segments) {
      for (AllocatorBlock& block : segment.blocks) {
        if (block.allocated) block.origin = of_recording(log_.origin_of(block.address));
      }
    }
    recording_.allocator.segments = std::move(segments);
  }

  Recording take() { return std::move(recording_); }

 private:
  // Where the entries of a range went, from number `first` on.
  struct Part {
    std::int64_t first = 0;
    std::vector<std::int64_t> place;        // the index that replaces the entry, or kDone
    std::vector<std::int64_t> size_before;  // of the recording; one more than entries
  };
  // Where the allocator's events of a range went, numbers `begin` to `end`.
  struct EventPart {
    std::int64_t begin = 0;
    std::int64_t end = 0;
    std::int64_t first = 0;  // the index of the first
  };

  std::int64_t size() const { return static_cast<std::int64_t>(recording_.entries.size()); }
  std::int64_t events() const { return static_cast<std::int64_t>(recording_.allocator.events.size()); }

  std::int64_t entries_before(const Part& part, std::int64_t number) const {
    return options_.entries ? part.size_before[static_cast<std::size_t>(number - part.first)] : 0;
  }

  void add_entry(Part& part, std::int64_t number) {
    const IssueLog::Logged& logged = log_.entries_[static_cast<std::size_t>(number - log_.first_.entry)];
    part.size_before.push_back(size());
    Entry entry = logged.entry;
    const bool waits = entry.kind == EntryKind::kStreamWait || entry.kind == EntryKind::kHostWait;
    if (waits) entry.other = place_of(entry.other);
    std::int64_t& last = last_[entry.stream.place()];
    // A wait for an entry that is not recorded is over. An event after it follows the stream's previous entry.
    if (waits && entry.other == kDone) {
      part.place.push_back(entry.kind == EntryKind::kStreamWait ? last : kDone);
      return;
    }
    if (!options_.call_site) entry.site = 0;
    if (is_on_stream(entry.kind)) last = size();
    part.place.push_back(size());
    recording_.entries.push_back(entry);
    if (options_.wall) recording_.wall.push_back(logged.wall == nullptr ? WallTime{} : *logged.wall);
  }

  void add_events(const Range& range, const Part& part) {
    event_parts_.push_back({range.from.event, range.to.event, events()});
    for (std::int64_t number = range.from.event; number < range.to.event; ++number) {
      AllocatorEvent event = log_.events_[static_cast<std::size_t>(number - log_.first_.event)];
      event.entries = entries_before(part, event.entries);
      event.origin = of_recording(event.origin);
      recording_.allocator.events.push_back(event);
    }
  }

  AllocatorOrigin of_recording(AllocatorOrigin origin) const {
    const auto part = std::ranges::find_if(
        event_parts_, [&](const EventPart& p) { return origin.event >= p.begin && origin.event < p.end; });
    origin.event = part == event_parts_.end() ? -1 : part->first + origin.event - part->begin;
    return origin;
  }

  std::int64_t place_of(std::int64_t number) const {
    for (auto part = parts_.rbegin(); part != parts_.rend(); ++part) {
      if (number < part->first) continue;
      const auto at = static_cast<std::size_t>(number - part->first);
      return at < part->place.size() ? part->place[at] : kDone;
    }
    return kDone;
  }

  void add_sample(MemorySample sample, std::int64_t entries) {
    sample.entries = entries;
    if (!options_.wall) sample.wall_ns = 0;
    recording_.memory.push_back(sample);
  }

  const IssueLog& log_;
  const RecorderOptions& options_;
  Recording recording_;
  std::vector<Part> parts_;
  std::vector<EventPart> event_parts_;
  std::int64_t last_[kStreams];  // the last entry of each stream
};

Recorder::Recorder(Device& device, RecorderOptions options)
    : device_(device), log_(device.log()), options_(std::move(options)) {
  log_.recorders_.push_back(this);
  start();
}

Recorder::~Recorder() {
  std::erase(log_.recorders_, this);
  log_.recorders_changed();
}

Recorder::Range Recorder::range_from_now() const {
  return {.from = log_.next(), .to = {}, .begin = options_.memory ? log_.sample() : MemorySample{}};
}

void Recorder::start() {
  if (running_) return;
  running_ = true;
  log_.recorders_changed();
  ranges_.push_back(range_from_now());
}

void Recorder::stop() {
  if (!running_) return;
  running_ = false;
  ranges_.back().to = log_.next();
  log_.recorders_changed();
}

void Recorder::clear() {
  ranges_.clear();
  if (running_) ranges_.push_back(range_from_now());
  log_.recorders_changed();
}

Recording Recorder::recording() const {
  if (options_.wall) {
    const IssueLog::Pause pause(log_);
    device_.synchronize();
  }
  Assembly assembly(log_, options_);
  for (const Range& range : ranges_) {
    Range part = range;
    if (running_ && &range == &ranges_.back()) part.to = log_.next();
    assembly.add(part);
  }
  if (options_.allocator) assembly.add_segments(log_.memory_->segments());
  return assembly.take();
}

}  // namespace loom::device
