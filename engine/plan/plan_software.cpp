#include "engine/plan/plan_software.h"

#include <cstdlib>

#include "engine/virtual_time/software.h"

namespace loom::plan {

virtual_time::HardwareProfile with_software(const virtual_time::HardwareProfile& profile,
                                            const std::optional<std::string>& name, train::KernelChoice& kernels) {
  const virtual_time::Software own = virtual_time::find_software(profile.software);
  const virtual_time::Software chosen = name ? virtual_time::find_software(*name) : own;
  if (name) {
    kernels.set = train::KernelSet::kPytorch;
    kernels.fused.flash_attn = true;
    kernels.fused.fused_rmsnorm |= chosen.fuses("rmsnorm");
    kernels.fused.fused_swiglu |= chosen.fuses("swiglu");
    kernels.fused.fused_rotary_pos_emb |= chosen.fuses("rope");
    kernels.fused.fused_cross_entropy |= chosen.fuses("cross_entropy");
  }
  return virtual_time::with_software(profile, own, chosen, std::getenv("TASK_QUEUE_ENABLE"));
}

}  // namespace loom::plan
