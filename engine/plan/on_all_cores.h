// Plans on several threads. Private to engine/plan.
#pragma once

#include <cstddef>
#include <functional>

namespace loom::plan {

// body(0), ..., body(count - 1), on all cores. Of several exceptions the first by number.
void on_all_cores(std::size_t count, const std::function<void(std::size_t)>& body);

}  // namespace loom::plan
