// A small step to plan: the quick start's model, four ranks, two micro-batches, on an H200 of any memory.
#pragma once

#include <cstdint>
#include <filesystem>

#include "engine/train/sections.h"
#include "engine/virtual_time/profile_file.h"

namespace loom::plan {

inline const std::filesystem::path kSource = LOOM_SOURCE_DIR;
inline constexpr int kRanks = 4;
inline constexpr std::int64_t kMiB = 1 << 20;

inline virtual_time::HardwareProfile profile(std::int64_t memory_bytes = std::int64_t{1} << 37) {
  virtual_time::HardwareProfile profile = virtual_time::load_profile(kSource / "configs/devices/h200.yaml");
  profile.memory.capacity_bytes = memory_bytes;
  profile.memory.context_bytes = 0;
  profile.memory.communicator.reset();
  return profile;
}

inline train::TrainSections arguments(const char* yaml = "quickstart.yaml") {
  train::TrainSections a;
  a.model.model_config = kSource / "configs/models/quickstart.yaml";
  a.parallel.use_torch_fsdp2 = true;
  a.parallel.fsdp2_config_path = kSource / "configs/fsdp2" / yaml;
  a.schedule.lr_decay_iters = a.schedule.train_iters;
  a.data.data_path = {kSource / "LICENSE"};
  a.data.seq_length = 64;
  a.schedule.micro_batch_size = 2;
  a.launch.ranks = kRanks;
  a.schedule.global_batch_size = 2 * kRanks * a.schedule.micro_batch_size;  // two micro-batches a step
  a.launch.device_executor = device::ExecutorKind::kInline;
  a.kernels.set = train::KernelSet::kPytorch;
  a.kernels.fused = nn::KernelOptions::pytorch();
  return a;
}

}  // namespace loom::plan
