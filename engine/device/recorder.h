// Recorder: records what a device's host issues while the recorder lives and runs. Several may live at once; each gets
// the entries that it would get alone.
//
// Cost      none for a device without one. Recording changes neither bits nor virtual time.
// Lifetime  the device outlives the recorder; recordings outlive both.
// Threads   the rank's host thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/device/device.h"
#include "engine/device/recording.h"

namespace loom::device {

struct RecorderOptions {
  bool entries = true;  // false: marks alone
  bool wall = false;
  bool memory = false;
  // Events and segments of the allocator. Blocks from before the recording have their origins where a recorder with
  // this has run since they were allocated.
  bool allocator = false;
  // Returns the reason for which an entry is issued; empty: no sites. With several recorders the first one is called.
  std::function<std::string()> call_site{};
};

class Recorder {
 public:
  // Begins at once.
  explicit Recorder(Device& device, RecorderOptions options = {});
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  // Between stop() and start() nothing is recorded. Both may be repeated.
  void start();
  void stop();

  // All that was recorded so far. With wall times the device is waited for first, which is not recorded: rethrows the
  // first cause of a stream that failed.
  Recording recording() const;
  // Forgets what was recorded so far.
  void clear();

 private:
  friend class IssueLog;

  // A part of the log.
  struct Range {
    IssueLog::Position from;
    IssueLog::Position to;
    MemorySample begin{};  // how the memory stood then
  };
  class Assembly;

  Range range_from_now() const;

  Device& device_;
  IssueLog& log_;
  const RecorderOptions options_;
  std::vector<Range> ranges_;  // ascending; the last one's end is now while the recorder runs
  bool running_ = false;
};

}  // namespace loom::device
