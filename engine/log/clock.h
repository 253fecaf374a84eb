// Clocks, as functions: tests set their own.
//
// Threads  the functions here are safe from any number of threads.
#pragma once

#include <cstdint>
#include <functional>

namespace loom::log {

// Nanoseconds since any fixed moment; never decreases.
using MonotonicClock = std::function<std::int64_t()>;
std::int64_t steady_clock_ns();

// Seconds since 1970.
using WallClock = std::function<double()>;
double wall_clock_s();

}  // namespace loom::log
