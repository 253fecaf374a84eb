// Logging: one spdlog logger to stderr. Level from SPDLOG_LEVEL (trace debug info warning error off), `info` by
// default. Messages are escaped (shown_text.h).
#pragma once

#include <cstdint>
#include <fmt/core.h>

namespace spdlog {
class logger;
}

namespace loom {

enum class LogLevel : std::uint8_t { kDebug, kInfo, kWarning, kError };

// Shared by the functions below, so that a call instantiates only its list of arguments.
void log_message(LogLevel level, fmt::string_view format, fmt::format_args args);

template <class... Args>
void log_debug(fmt::format_string<Args...> format, Args&&... args) {
  log_message(LogLevel::kDebug, format, fmt::make_format_args(args...));
}
template <class... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  log_message(LogLevel::kInfo, format, fmt::make_format_args(args...));
}
template <class... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  log_message(LogLevel::kWarning, format, fmt::make_format_args(args...));
}
template <class... Args>
void log_error(fmt::format_string<Args...> format, Args&&... args) {
  log_message(LogLevel::kError, format, fmt::make_format_args(args...));
}

// Instead of that of SPDLOG_LEVEL.
void set_log_level(LogLevel level);

// The project's logger, made at first use: its level and sinks.
spdlog::logger& logger();

}  // namespace loom
