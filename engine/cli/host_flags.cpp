#include "engine/cli/host_flags.h"

namespace loom::cli {

void add_host(Flags& flags, Program program, ProgramArguments& a) {
  flags.group(plans(program) ? "" : "Cores and host memory");  // of a launch script: a plan binds nothing
  flags.text("--bind-core", "TEXT", a.bind_core,
             "Bind the threads of each rank to cores: True, False, or {\"device0\": [\"0-9\"], ...}, as msrun has it; "
             "CPU_AFFINITY_CONF in the environment does the same",
             "False");
  flags.text(
      "--numa-device", "PROFILE", a.numa_device,
      "Device profile that says at which NUMA node the device of each rank is, for host memory and npu_affine:1: "
      "a file, or a name in configs/devices");
}

void settle_host(bool planned, const launch::LaunchContext& context, ProgramArguments& a) {
  a.affinity = launch::parse_bind_core(a.bind_core);
  if (planned) {
    a.affinity = {};
    return;
  }
  const launch::AffinityRequest conf = launch::parse_affinity_conf(context.affinity_conf);
  if (conf.mode == launch::AffinityMode::kOff) return;
  if (a.affinity.mode != launch::AffinityMode::kOff) {
    config_error("--bind-core is {}, and CPU_AFFINITY_CONF in the environment is {}; keep one of them",
                 shown_text(a.bind_core), shown_text(context.affinity_conf));
  }
  a.affinity = conf;
}

}  // namespace loom::cli
