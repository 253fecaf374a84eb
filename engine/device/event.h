// Event: a point in a stream's order. Copies share one state.
//
// States   pending -> done, or pending -> failed; a default-made event is done. An event that failed carries the first
//          cause and shares its ownership.
// Threads  any.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>

namespace loom::device {

class Event {
 public:
  Event() = default;  // done
  static Event pending();

  // Does not block.
  bool done() const;
  // Blocks the calling thread until the event is done. Rethrows the cause when it failed. Bounded by the deadlines of
  // the work before it.
  void wait() const;
  // As wait(), but returns the cause instead of throwing it; null when the event succeeded.
  std::exception_ptr wait_for_cause() const;

  // The number of the log entry that the event follows (issue_log.h).
  std::int64_t entry() const { return entry_; }
  void set_entry(std::int64_t entry) { entry_ = entry; }

  // For streams: settles the event, once.
  void settle(std::exception_ptr cause) const;

 private:
  struct State;
  std::shared_ptr<State> state_;
  std::int64_t entry_ = -1;
};

}  // namespace loom::device
