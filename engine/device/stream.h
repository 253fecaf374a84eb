// Stream: an ordered queue of device work.
//
// Order     items of one stream run one after another in the order they were submitted; items of different streams are
//           ordered by events only.
// Executor  inline: submit() runs the item before it returns (tests, plans). threaded: a worker thread of the stream
//           runs it behind the host; the worker starts at the first submit. The compute stream always runs on the host
//           thread: its items are the host's work.
// Errors    an item that throws poisons its stream: later items are skipped and every event recorded afterwards fails
//           with the first cause. Waiting for a failed event poisons the waiting stream with the same cause. The cause
//           surfaces at the host's first wait. On the compute stream an item's error is thrown to the host at once.
// Threads   submit, wait, record and synchronize: the rank's host thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "engine/device/cost.h"
#include "engine/device/event.h"
#include "engine/device/issue_log.h"
#include "engine/device/stream_id.h"

namespace loom {
class RankContext;
}

namespace loom::device {

enum class ExecutorKind : std::uint8_t { kInline, kThreaded };

struct StreamItem {
  std::string_view
      name;  // "all_gather"; a literal or longer-lived than the call. An item without a name is not recorded
  std::string_view subject;  // "layers.3"; copied when recorded
  Cost cost;
  std::function<void()> run;  // null in a dry run; must own or outlive what it touches
  std::optional<Collective> collective{};
};

class Stream {
 public:
  Stream(StreamId id, ExecutorKind executor, RankContext* context, IssueLog* log);
  ~Stream();  // waits for the items already submitted
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  std::string_view name() const { return id_.name(); }

  // Appends an item. Blocks the host only with the inline executor.
  void submit(StreamItem item);
  // Items submitted from now on run after `event`. Blocks the host only on the compute stream.
  void wait(const Event& event);
  // An event that is done when everything submitted so far is. Does not block.
  Event record();
  // Blocks the host until the stream is empty; rethrows its first cause.
  void synchronize();

 private:
  class Worker;

  void do_wait(const Event& event, WallSlot wall);
  Event do_record();

  const StreamId id_;
  const ExecutorKind executor_;
  const bool runs_on_host_;
  RankContext* const context_;
  IssueLog* const log_;
  std::exception_ptr cause_;        // inline executor only
  std::unique_ptr<Worker> worker_;  // threaded executor only
};

}  // namespace loom::device
