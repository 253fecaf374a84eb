#include "engine/comm/messages/transport.h"

#include <new>
#include <utility>

#include "engine/comm/call.h"

namespace loom::comm::messages {

Outcome Transport::wait(Batch& batch) {
  std::unique_lock lock(mutex_);
  batch.ended_.wait(lock, [&] { return batch.outcome_.has_value(); });
  return *batch.outcome_;
}

void Transport::fail(const std::string& reason) noexcept {
  const std::lock_guard lock(mutex_);
  if (failure_) return;
  failure_ = Failure{};
  failure_->rank = rank();
  wake();
  try {
    failure_->reason = reason;
  } catch (const std::bad_alloc&) {  // the failure itself must not be lost with its text
  }
}

std::string Transport::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_ ? failed_first(failure_->rank, failure_->reason) : std::string{};
}

void Transport::end(Batch& batch, Outcome outcome) {
  const std::lock_guard lock(mutex_);
  batch.outcome_ = std::move(outcome);
  batch.ended_.notify_all();
}

void Transport::note_failure(Failure failure) {
  const std::lock_guard lock(mutex_);
  if (!failure_) failure_ = std::move(failure);
}

std::optional<Transport::Failure> Transport::known_failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

}  // namespace loom::comm::messages
