// Logging: one spdlog logger to stderr. Level from SPDLOG_LEVEL (trace debug info warning error off), `info` by
// default. Messages are escaped (shown_text.h).
#pragma once

#include <spdlog/spdlog.h>

namespace loom {

// The project's logger; made at first use.
spdlog::logger& logger();

}  // namespace loom
