// The software that a plan assumes: the rates of the device under it (engine/virtual_time/software.h), and its kernels.
#pragma once

#include <optional>
#include <string>

#include "engine/train/kernel_choice.h"
#include "engine/virtual_time/profile.h"

namespace loom::plan {

// `profile` as the software runs on it: `name`, a file or a name in configs/software, or that of the profile. With a
// name, `kernels` become those of PyTorch, with flash attention and the kernels that the software fuses. On NPUs,
// TASK_QUEUE_ENABLE of the environment counts. ConfigError as in software.h.
virtual_time::HardwareProfile with_software(const virtual_time::HardwareProfile& profile,
                                            const std::optional<std::string>& name, train::KernelChoice& kernels);

}  // namespace loom::plan
