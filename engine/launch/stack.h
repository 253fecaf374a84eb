// Stacks large enough for the engine, whatever the limit of `ulimit -s`.
//
// Threads   call before any other thread is started. The stacks of threads started later, by libraries too, are at
//           least kStackBytes large.
#pragma once

#include <cstddef>
#include <functional>

namespace loom::launch {

inline constexpr std::size_t kStackBytes = std::size_t{8} << 20;

// Runs `main` and returns its result: on this thread if its stack is large enough, else on a new thread. Exceptions of
// `main` pass through.
int run_on_large_stack(const std::function<int()>& main);

}  // namespace loom::launch
