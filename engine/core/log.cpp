#include "engine/core/log.h"

#include <spdlog/cfg/env.h>
#include <spdlog/sinks/stdout_color_sinks.h>

#include "engine/core/rank_context.h"

namespace loom {

spdlog::logger& logger() {
  static const std::shared_ptr<spdlog::logger> instance = [] {
    auto made = std::make_shared<spdlog::logger>("shardloom", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    made->set_pattern("%^%l%$: %v");
    spdlog::register_logger(made);
    spdlog::cfg::load_env_levels();
    return made;
  }();
  return *instance;
}

}  // namespace loom
