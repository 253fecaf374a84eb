#include "engine/device/stream.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>

#include "engine/core/rank_context.h"
#include "engine/core/thread_cores.h"

namespace loom::device {
namespace {

void run_unless_poisoned(const std::function<void()>& run, std::exception_ptr& cause) {
  if (cause || !run) return;
  try {
    run();
  } catch (...) {
    cause = std::current_exception();
  }
}

}  // namespace

// The thread behind a stream. An entry is work, an event to wait for, or an event to settle.
class Stream::Worker {
 public:
  explicit Worker(RankContext* context) : thread_([this, context] { loop(context); }) {}

  ~Worker() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }

  void push(std::function<void(std::exception_ptr&)> entry) {
    {
      const std::lock_guard lock(mutex_);
      entries_.push_back(std::move(entry));
    }
    changed_.notify_one();
  }

 private:
  void loop(RankContext* context) {
    std::optional<RankScope> scope;
    if (context != nullptr) scope.emplace(*context);
    std::exception_ptr cause;
    if (context != nullptr) run_unless_poisoned([&] { bind_this_thread(*context, ThreadRole::kStream); }, cause);
    while (std::function<void(std::exception_ptr&)> entry = next()) entry(cause);
  }

  std::function<void(std::exception_ptr&)> next() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stopping_ || !entries_.empty(); });
    if (entries_.empty()) return nullptr;
    auto entry = std::move(entries_.front());
    entries_.pop_front();
    return entry;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void(std::exception_ptr&)>> entries_;
  bool stopping_ = false;
  std::thread thread_;  // last: it uses the members above
};

Stream::Stream(StreamId id, ExecutorKind executor, RankContext* context, IssueLog* log)
    : id_(id),
      executor_(id == StreamId::kCompute ? ExecutorKind::kInline : executor),
      runs_on_host_(id == StreamId::kCompute),
      context_(context),
      log_(log) {}

Stream::~Stream() = default;

void Stream::submit(StreamItem item) {
  WallSlot wall = log_->add_item(id_, item);
  if (runs_on_host_) {
    const WallStamp stamp(wall);
    if (item.run) item.run();
    return;
  }
  if (executor_ == ExecutorKind::kInline) {
    const WallStamp stamp(wall);
    run_unless_poisoned(item.run, cause_);
    return;
  }
  if (!item.run) return;
  if (!worker_) worker_ = std::make_unique<Worker>(context_);
  worker_->push([run = std::move(item.run), wall](std::exception_ptr& cause) {
    const WallStamp stamp(wall);
    run_unless_poisoned(run, cause);
  });
}

void Stream::wait(const Event& event) { do_wait(event, log_->add_stream_wait(id_, event.entry())); }

void Stream::do_wait(const Event& event, WallSlot wall) {
  if (runs_on_host_) {
    const WallStamp stamp(wall);
    event.wait();
    return;
  }
  if (executor_ == ExecutorKind::kInline) {
    const WallStamp stamp(wall);
    if (std::exception_ptr cause = event.wait_for_cause(); cause && !cause_) cause_ = cause;
    return;
  }
  if (event.done() && !event.wait_for_cause()) return;
  if (!worker_) worker_ = std::make_unique<Worker>(context_);
  worker_->push([event, wall](std::exception_ptr& cause) {
    const WallStamp stamp(wall);
    if (std::exception_ptr other = event.wait_for_cause(); other && !cause) cause = other;
  });
}

Event Stream::record() {
  Event event = do_record();
  if (log_->on()) event.set_entry(log_->last_of(id_));
  return event;
}

Event Stream::do_record() {
  if (executor_ == ExecutorKind::kInline) {
    if (!cause_) return {};
    Event failed = Event::pending();
    failed.settle(cause_);
    return failed;
  }
  if (!worker_) return {};
  Event event = Event::pending();
  worker_->push([event](std::exception_ptr& cause) { event.settle(cause); });
  return event;
}

void Stream::synchronize() {
  const Event event = record();
  const WallStamp stamp(log_->add_host_wait(event.entry()));
  event.wait();
}

}  // namespace loom::device
