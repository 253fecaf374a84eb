#include "engine/device/event.h"

#include <condition_variable>
#include <mutex>

namespace loom::device {

struct Event::State {
  std::mutex mutex;
  std::condition_variable settled;
  bool done = false;
  std::exception_ptr cause;
};

Event Event::pending() {
  Event event;
  event.state_ = std::make_shared<State>();
  return event;
}

bool Event::done() const {
  if (!state_) return true;
  const std::lock_guard lock(state_->mutex);
  return state_->done;
}

std::exception_ptr Event::wait_for_cause() const {
  if (!state_) return nullptr;
  std::unique_lock lock(state_->mutex);
  state_->settled.wait(lock, [&] { return state_->done; });
  return state_->cause;
}

void Event::wait() const {
  if (std::exception_ptr cause = wait_for_cause()) std::rethrow_exception(cause);
}

void Event::settle(std::exception_ptr cause) const {
  const std::lock_guard lock(state_->mutex);
  state_->done = true;
  state_->cause = std::move(cause);
  state_->settled.notify_all();
}

}  // namespace loom::device
