// Bytes and nanoseconds as tables show them. Private to engine/plan.
#pragma once

#include <cstdint>

namespace loom::plan {

inline double mib(std::int64_t bytes) { return static_cast<double>(bytes) / (1024.0 * 1024.0); }
inline double gib(std::int64_t bytes) { return static_cast<double>(bytes) / (1024.0 * 1024.0 * 1024.0); }
inline double ms(std::int64_t ns) { return static_cast<double>(ns) * 1e-6; }

}  // namespace loom::plan
