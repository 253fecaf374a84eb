#include "engine/cli/words/host_checks.h"

namespace loom::cli {

void settle_host(bool planned, const launch::Start& start, launch::LaunchOptions& launch) {
  launch.affinity = launch::parse_bind_core(launch.bind_core);
  if (planned) {
    launch.affinity = {};
    return;
  }
  const launch::AffinityRequest conf = launch::parse_affinity_conf(start.affinity_conf);
  if (conf.mode == launch::AffinityMode::kOff) return;
  if (launch.affinity.mode != launch::AffinityMode::kOff) {
    config_error("--bind-core is {}, and CPU_AFFINITY_CONF in the environment is {}; keep one of them",
                 shown_text(launch.bind_core), shown_text(start.affinity_conf));
  }
  launch.affinity = conf;
}

}  // namespace loom::cli
