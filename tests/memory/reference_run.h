// ReferenceRun: what tests/reference/generate/gpu_ref.py measures on an H200, as a dry run of this engine: rank 0 of a
// simulated world, PyTorch's grain as the reference README lists it, the memory of every phase of a step.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/comm/process_group.h"
#include "engine/core/rank_context.h"
#include "engine/data/step.h"
#include "engine/device/device.h"
#include "engine/nn/module.h"
#include "engine/nn/optim/adamw.h"
#include "models/graph/graph_model.h"
#include "tests/support/case_json.h"

namespace loom::test {

// What a matrix product takes for itself at its first call, for good.
inline constexpr std::int64_t kWorkspaceBytes = std::int64_t{64} << 20;

// One row of the table: the configuration.
struct ReferenceRow {
  std::string model;
  int world = 1;
  std::int64_t seq = 0;
  std::int64_t mbs = 1;
  bool reshard_after_forward = true;
  bool recompute = false;
  int num_to_forward_prefetch = 0;
  int num_to_backward_prefetch = 0;
  DType reduce_dtype = DType::kF32;
  bool offload_to_cpu = false;

  static ReferenceRow from_json(const CaseJson& row);
  std::string name() const;
};

struct PhaseBytes {
  std::int64_t after_init = 0;
  std::int64_t forward_peak = 0;
  std::int64_t after_forward = 0;
  std::int64_t backward_peak = 0;
  std::int64_t after_backward = 0;
  std::int64_t optim_peak = 0;
  std::int64_t steady = 0;
  std::int64_t reserved = 0;
};

class ReferenceRun {
 public:
  explicit ReferenceRun(const ReferenceRow& row, const device::DeviceProfile& profile = {});
  // The same model as a recording of it. The row's sizes are the recording's.
  ReferenceRun(const ReferenceRow& row, std::shared_ptr<const models::GraphProgram> recorded);
  ~ReferenceRun();

  // Bytes right after the parameters got theirs.
  std::int64_t after_init_bytes() const { return after_init_bytes_; }
  // One step; its recording has the phases "forward", "backward", "optimizer" and "end".
  PhaseBytes step();
  device::Device& device() { return *device_; }

 private:
  ReferenceRun(const ReferenceRow& row, const device::DeviceProfile& profile,
               std::shared_ptr<const models::GraphProgram> recorded);
  void wrap();
  Tensor forward(nn::Value& logits);
  std::int64_t allocated() const { return device_->memory().stats().allocator.allocated_bytes; }
  std::int64_t peak() const { return device_->memory().stats().allocator.peak_allocated_bytes; }

  const ReferenceRow row_;
  RankContext context_;
  RankScope scope_;
  device::Device* device_;
  std::unique_ptr<comm::World> world_;
  std::shared_ptr<device::Block> workspace_;
  std::shared_ptr<nn::Module> model_;
  std::unique_ptr<nn::AdamW> optimizer_;
  const std::shared_ptr<const models::GraphProgram> recorded_;  // null: the engine's own model
  Tensor ids_;
  data::Batch batch_;  // of a recorded model
  std::int64_t after_init_bytes_ = 0;
};

}  // namespace loom::test
