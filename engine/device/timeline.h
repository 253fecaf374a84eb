// Timeline: what one rank's host issued, as the resolution of virtual time needs it (simulate.h). Host order.
//
// Entries   work on a stream; a stream that waits for an entry; the host that works, or waits for an entry. Entries are
//           numbered from 0 on, for good; an event of the device holds the number of the entry it stands behind.
// Virtual   nothing here takes time: durations come from a time model when the timeline is resolved.
// Wall      where asked for, when it really ran: the host's clock when an entry was issued, began and ended, stamped by
//           the thread that ran it.
// Sites     where asked for, what an entry was issued for, in the words of a function that is given; of what a node of
//           the tape launches in backward: those of its forward (CallSiteScope).
// Default   off: nothing is stored and events hold no number.
// Threads   the rank's host thread. Wall times of what other threads run are read after the host has waited for them.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/device/cost.h"
#include "engine/device/stream_id.h"

namespace loom::device {

struct StreamItem;

enum class TimelineKind : std::uint8_t {
  kWork,        // a stream works
  kStreamWait,  // a stream waits for an entry
  kHostWork,    // the host works
  kHostWait,    // the host waits for an entry
  kMark,        // a point in the host's time: a phase of the step begins
};

// Number of an entry that is always done.
inline constexpr std::int64_t kDone = -1;

struct TimelineEntry {
  TimelineKind kind = TimelineKind::kWork;
  StreamId stream = StreamId::kCompute;
  CollectiveKind collective = CollectiveKind::kAllGather;
  std::int32_t name = 0;     // of the kernel, collective or mark: a number for Timeline::text()
  std::int32_t subject = 0;  // "layers.3"
  std::int32_t group = -1;   // the ranks of a collective: a number for Timeline::group(); -1: no collective
  std::int32_t site = 0;     // a number for Timeline::text()
  std::int64_t other = kDone;
  std::int64_t bytes = 0;  // of a collective's whole tensor
  Cost cost;
};

// When an entry really was issued by the host, began and ended: ns of std::chrono::steady_clock.
struct WallTime {
  std::int64_t issued = 0;
  std::int64_t start = 0;
  std::int64_t end = 0;
};
std::int64_t wall_clock_ns();

// Stamps begin and end of what runs while it lives; nothing for null.
class WallStamp {
 public:
  explicit WallStamp(WallTime* time) : time_(time) {
    if (time_ != nullptr) time_->start = wall_clock_ns();
  }
  ~WallStamp() {
    if (time_ != nullptr) time_->end = wall_clock_ns();
  }
  WallStamp(const WallStamp&) = delete;
  WallStamp& operator=(const WallStamp&) = delete;

 private:
  WallTime* const time_;
};

// What is noted with each entry beside itself.
struct Recording {
  bool wall = false;
  std::function<std::string()> call_site{};  // none: no sites
};

class Timeline {
 public:
  // `what` is the same from one clear() to the next.
  void enable(bool on, Recording what = {});
  // While it lives nothing is noted: what a kernel reads inside itself is no wait of the host.
  class Pause {
   public:
    explicit Pause(Timeline& timeline) : timeline_(timeline), before_(timeline.enabled_) { timeline_.enabled_ = false; }
    ~Pause() { timeline_.enabled_ = before_; }
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;

   private:
    Timeline& timeline_;
    const bool before_;
  };
  bool enabled() const { return enabled_; }

  // Each returns where the entry's wall time goes, stable until clear(); null when none is noted.
  WallTime* add_work(StreamId stream, const StreamItem& item);
  WallTime* add_kernel(StreamId stream, std::string_view name, const Cost& cost);
  WallTime* add_stream_wait(StreamId stream, std::int64_t entry);
  WallTime* add_host_work(std::string_view name, const Cost& cost);
  WallTime* add_host_wait(std::int64_t entry);
  void add_mark(std::string_view name, std::string_view subject = {});
  // The last entry of a stream, or kDone: what an event recorded now stands behind.
  std::int64_t last_of(StreamId stream) const { return last_[static_cast<std::size_t>(stream)]; }
  // Forgets every entry so far: all are over (the host has waited for the device).
  void clear();

  // Those since clear(); the first has the number first_entry(). What an entry waits for may be older: it is over.
  const std::vector<TimelineEntry>& entries() const { return entries_; }
  std::int64_t first_entry() const { return first_entry_; }
  // As entries(); empty where none are noted.
  const std::deque<WallTime>& wall_times() const { return wall_; }
  // What an entry issued now would be for: a number for text(); 0 where none is noted.
  std::int32_t call_site();
  const std::string& text(std::int32_t number) const { return texts_[static_cast<std::size_t>(number)]; }
  const std::vector<int>& group(std::int32_t number) const { return groups_[static_cast<std::size_t>(number)]; }
  std::int32_t groups() const { return static_cast<std::int32_t>(groups_.size()); }

 private:
  friend class CallSiteScope;

  WallTime* add(TimelineEntry entry);
  WallTime* add_on(StreamId stream, TimelineEntry entry);
  std::int32_t number_of(std::string_view text);
  std::int32_t number_of(const std::vector<int>& ranks);

  struct TextHash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
  };

  bool enabled_ = false;
  Recording what_;
  std::int32_t inherited_site_ = 0;
  std::int64_t first_entry_ = 0;
  std::vector<TimelineEntry> entries_;
  std::deque<WallTime> wall_;
  std::int64_t last_[kStreams] = {kDone, kDone, kDone, kDone, kDone, kDone, kDone};
  std::vector<std::string> texts_{""};
  std::unordered_map<std::string, std::int32_t, TextHash, std::equal_to<>> text_numbers_{{"", 0}};
  std::vector<std::vector<int>> groups_;
  std::unordered_map<const std::vector<int>*, std::int32_t> group_numbers_;
};

// While it lives, what is issued without a site of its own is for `site` (0: changes nothing).
class CallSiteScope {
 public:
  CallSiteScope(Timeline& timeline, std::int32_t site) : timeline_(timeline), before_(timeline.inherited_site_) {
    if (site != 0) timeline_.inherited_site_ = site;
  }
  ~CallSiteScope() { timeline_.inherited_site_ = before_; }
  CallSiteScope(const CallSiteScope&) = delete;
  CallSiteScope& operator=(const CallSiteScope&) = delete;

 private:
  Timeline& timeline_;
  const std::int32_t before_;
};

}  // namespace loom::device
