// IssueLog: the one log of a device: all that its host issues while a Recorder runs. Recorders take ranges of it.
//
// Numbers   entries are numbered from 0 on, permanently; an event of the device has the number of the entry that it
//           follows, whichever Recorder runs.
// Off       while no Recorder runs: nothing is stored, events have no number, and issuing costs one check.
// Bounds    entries that no living Recorder can still request are dropped. Texts and groups are stored once and stay.
// Sites     if a recorder requests them: the reason for which an entry was issued. An entry that a node of the tape
//           launches in backward has the site of its forward (CallSiteScope).
// Threads   the rank's host thread. Wall times are stamped by the thread that runs the work.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/device/recording.h"

namespace loom::device {

class Recorder;
struct StreamItem;

std::int64_t wall_clock_ns();

// Receives an entry's wall time; null if none is recorded. Shared: work that runs later may outlive the log.
using WallSlot = std::shared_ptr<WallTime>;

// Stamps the begin and end of the work that runs while it lives; does nothing for null.
class WallStamp {
 public:
  explicit WallStamp(WallSlot time) : time_(std::move(time)) {
    if (time_ != nullptr) time_->start = wall_clock_ns();
  }
  ~WallStamp() {
    if (time_ != nullptr) time_->end = wall_clock_ns();
  }
  WallStamp(const WallStamp&) = delete;
  WallStamp& operator=(const WallStamp&) = delete;

 private:
  const WallSlot time_;
};

// A mark as it is issued; the log adds its place.
struct NewMark {
  MarkKind kind{};
  std::string_view subject{};
  std::int64_t bytes = 0;
  DType dtype = DType::kF32;
  std::int64_t count = 0;
  bool prefetched = false;
};

class IssueLog {
 public:
  // `memory` is watched by recorders of memory and outlives the log. Null: none.
  explicit IssueLog(DeviceMemory* memory = nullptr) : memory_(memory) {}
  ~IssueLog();
  IssueLog(const IssueLog&) = delete;
  IssueLog& operator=(const IssueLog&) = delete;

  // While it lives no entry is noted for any Recorder: a read inside a kernel is not a wait of the host.
  class Pause {
   public:
    explicit Pause(IssueLog& log) : log_(log) {
      ++log_.pauses_;
      log_.notes_entries_ = false;
    }
    ~Pause() { log_.notes_entries_ = --log_.pauses_ == 0 && log_.wants_entries_; }
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;

   private:
    IssueLog& log_;
  };

  // Whether entries are noted now.
  bool on() const { return notes_entries_; }

  // Each notes nothing while the log is off.
  WallSlot add_item(StreamId stream, const StreamItem& item);
  WallSlot add_kernel(StreamId stream, std::string_view name, const Cost& cost);
  // `number`: of the entry waited for. Nothing is noted for kDone.
  WallSlot add_stream_wait(StreamId stream, std::int64_t number);
  WallSlot add_host_work(std::string_view name, const Cost& cost);
  WallSlot add_host_wait(std::int64_t number);
  void add_phase(std::string_view name);
  // Of a receive with that number, whose bytes were not known when it was issued.
  void set_bytes_of_message(std::int64_t number, std::int64_t bytes);
  // Pause does not hold marks back.
  void add_mark(const NewMark& mark);

  // The number of the last entry of a stream, or kDone: an event recorded now follows this entry.
  std::int64_t last_of(StreamId stream) const { return last_[stream.place()]; }
  // The site of an entry issued now: the number of a text; 0 if no sites are recorded.
  std::int32_t call_site();

 private:
  friend class CallSiteScope;
  friend class Recorder;

  struct Logged {
    Entry entry;  // `other` is a number
    WallSlot wall;
  };
  // The numbers of the next entry, mark, sample and event of the allocator.
  struct Position {
    std::int64_t entry = 0;
    std::int64_t mark = 0;
    std::int64_t sample = 0;
    std::int64_t event = 0;
  };
  struct TextHash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
  };

  WallSlot add(Entry entry);
  WallSlot add_on(StreamId stream, Entry entry);
  MemorySample sample() const;
  void watch_allocator(bool on);
  void note_change(const AllocatorChange& change, MemCategory category, std::string_view what);
  AllocatorOrigin origin_of(std::int64_t address) const;
  std::int32_t number_of(std::string_view text);
  std::int32_t number_of(const std::vector<int>& ranks);

  Position next() const;
  // Called when recorders began, stopped or ended: updates which entries are noted.
  void recorders_changed();
  void drop_unneeded();

  DeviceMemory* const memory_;
  std::vector<const Recorder*> recorders_;  // alive, in the order of their making
  int pauses_ = 0;
  bool wants_entries_ = false;  // some recorder does
  bool notes_entries_ = false;  // and no Pause lives
  bool notes_marks_ = false;
  bool notes_wall_ = false;
  bool notes_memory_ = false;
  bool notes_allocator_ = false;
  const std::function<std::string()>* sites_ = nullptr;
  std::int32_t inherited_site_ = 0;

  std::deque<Logged> entries_;
  std::deque<Mark> marks_;             // Mark::entries is a number
  std::deque<MemorySample> samples_;   // MemorySample::entries is a number
  std::deque<AllocatorEvent> events_;  // AllocatorEvent::entries is a number, and AllocatorOrigin::event
  std::unordered_map<std::int64_t, AllocatorOrigin> origins_;  // of the blocks, by address; while events are noted
  Position first_;                                             // the numbers of the fronts
  std::array<std::int64_t, kStreams> last_ = [] {
    std::array<std::int64_t, kStreams> none{};
    none.fill(kDone);
    return none;
  }();
  std::vector<std::string> texts_{""};
  std::unordered_map<std::string, std::int32_t, TextHash, std::equal_to<>> text_numbers_{{"", 0}};
  std::vector<std::vector<int>> groups_;
  std::unordered_map<const std::vector<int>*, std::int32_t> group_numbers_;
};

// While it lives, what is issued without a site of its own is for `site` (0: changes nothing).
class CallSiteScope {
 public:
  CallSiteScope(IssueLog& log, std::int32_t site) : log_(log), before_(log.inherited_site_) {
    if (site != 0) log_.inherited_site_ = site;
  }
  ~CallSiteScope() { log_.inherited_site_ = before_; }
  CallSiteScope(const CallSiteScope&) = delete;
  CallSiteScope& operator=(const CallSiteScope&) = delete;

 private:
  IssueLog& log_;
  const std::int32_t before_;
};

}  // namespace loom::device
