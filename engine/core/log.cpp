#include "engine/core/log.h"

#include <memory>
#include <spdlog/cfg/env.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include "engine/core/rank_context.h"
#include "engine/core/shown_text.h"

namespace loom {
namespace {

// "%*": the message as a terminal gets it.
class ShownPayload final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&, spdlog::memory_buf_t& out) override {
    const std::string text = shown_message({message.payload.data(), message.payload.size()});
    out.append(text.data(), text.data() + text.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override { return std::make_unique<ShownPayload>(); }
};

std::unique_ptr<spdlog::formatter> make_formatter() {
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<ShownPayload>('*').set_pattern("%^%l%$: %*");
  return formatter;
}

spdlog::level::level_enum level_of(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      break;
  }
  return spdlog::level::err;
}

}  // namespace

void log_message(LogLevel level, fmt::string_view format, fmt::format_args args) {
  if (!logger().should_log(level_of(level))) return;
  const std::string text = fmt::vformat(format, args);
  logger().log(level_of(level), spdlog::string_view_t(text));
}

void set_log_level(LogLevel level) { logger().set_level(level_of(level)); }

spdlog::logger& logger() {
  static const std::shared_ptr<spdlog::logger> instance = [] {
    auto made = std::make_shared<spdlog::logger>("shardloom", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    made->set_formatter(make_formatter());
    spdlog::register_logger(made);
    spdlog::cfg::load_env_levels();
    return made;
  }();
  return *instance;
}

}  // namespace loom
