#include "engine/cli/host_checks.h"

namespace loom::cli {

void settle_host(bool planned, const launch::Start& start, ProgramArguments& a) {
  a.affinity = launch::parse_bind_core(a.bind_core);
  if (planned) {
    a.affinity = {};
    return;
  }
  const launch::AffinityRequest conf = launch::parse_affinity_conf(start.affinity_conf);
  if (conf.mode == launch::AffinityMode::kOff) return;
  if (a.affinity.mode != launch::AffinityMode::kOff) {
    config_error("--bind-core is {}, and CPU_AFFINITY_CONF in the environment is {}; keep one of them",
                 shown_text(a.bind_core), shown_text(start.affinity_conf));
  }
  a.affinity = conf;
}

}  // namespace loom::cli
