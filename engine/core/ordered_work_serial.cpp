#include "engine/core/error.h"
#include "engine/core/ordered_work.h"

namespace loom {

void run_in_order(int workers, const std::function<std::unique_ptr<OrderedItem>()>& next) {
  if (workers != 1) {
    config_error("{} workers requested, but this build has serial loops (LOOM_PARALLEL=serial); use 1", workers);
  }
  while (const auto item = next()) {
    item->work(0);
    item->take();
  }
}

}  // namespace loom
