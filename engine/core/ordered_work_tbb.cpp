#include <atomic>
#include <exception>
#include <tbb/global_control.h>
#include <tbb/parallel_pipeline.h>
#include <tbb/task_arena.h>

#include "engine/core/error.h"
#include "engine/core/ordered_work.h"

namespace loom {
namespace {

// An item, or what went wrong instead of one. TBB copies what it hands on.
struct Slot {
  std::unique_ptr<OrderedItem> item;
  std::exception_ptr error;
};
using SharedSlot = std::shared_ptr<Slot>;

class Stages {
 public:
  explicit Stages(const std::function<std::unique_ptr<OrderedItem>()>& next) : next_(next) {}

  SharedSlot make(tbb::flow_control& control) {
    auto slot = std::make_shared<Slot>();
    if (!ended_ && !failed_) try_to(*slot, [&] { slot->item = next_(); });
    if (!slot->item && !slot->error) control.stop();
    ended_ = ended_ || !slot->item;
    return slot;
  }

  static SharedSlot work(const SharedSlot& slot) {
    if (!slot->error) try_to(*slot, [&] { slot->item->work(tbb::this_task_arena::current_thread_index()); });
    return slot;
  }

  // Nothing is thrown out of a filter: what is on its way then would never be freed.
  void take(const SharedSlot& slot) {
    if (failed_) return;
    if (!slot->error) try_to(*slot, [&] { slot->item->take(); });
    error_ = slot->error;
    failed_ = error_ != nullptr;
  }

  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  // An error waits for its turn: errors of earlier items come first.
  template <class Step>
  static void try_to(Slot& slot, Step step) {
    try {
      step();
    } catch (...) {
      slot.error = std::current_exception();
    }
  }

  const std::function<std::unique_ptr<OrderedItem>()>& next_;
  bool ended_ = false;
  std::exception_ptr error_;  // of the first item, in order, that failed
  std::atomic<bool> failed_ = false;
};

void run_alone(const std::function<std::unique_ptr<OrderedItem>()>& next) {
  while (const auto item = next()) {
    item->work(0);
    item->take();
  }
}

}  // namespace

void run_in_order(int workers, const std::function<std::unique_ptr<OrderedItem>()>& next) {
  require(workers >= 1, "workers must be at least 1, got {}", workers);
  if (workers == 1) return run_alone(next);
  const auto threads = static_cast<std::size_t>(workers);
  const tbb::global_control as_many_as_asked(tbb::global_control::max_allowed_parallelism, threads);
  tbb::task_arena arena(workers);
  arena.execute([&] {
    Stages stages(next);
    using tbb::filter_mode;
    tbb::parallel_pipeline(
        threads * kItemsPerWorker,
        tbb::make_filter<void, SharedSlot>(filter_mode::serial_in_order,
                                           [&](tbb::flow_control& control) { return stages.make(control); }) &
            tbb::make_filter<SharedSlot, SharedSlot>(filter_mode::parallel, &Stages::work) &
            tbb::make_filter<SharedSlot, void>(filter_mode::serial_in_order,
                                               [&](const SharedSlot& slot) { stages.take(slot); }));
    stages.rethrow();
  });
}

}  // namespace loom
