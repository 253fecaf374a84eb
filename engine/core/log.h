// Logging: one spdlog logger to stderr. Level from SPDLOG_LEVEL (trace debug info warning error off), `info` by
// default.
#pragma once

#include <spdlog/spdlog.h>

namespace loom {

// The project's logger; made at first use.
spdlog::logger& logger();

// Logs once for the whole job: on rank 0, or when no rank is current. Others say nothing.
bool logs_for_job();

}  // namespace loom
