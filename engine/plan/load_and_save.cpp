#include "engine/plan/load_and_save.h"

#include <algorithm>

#include "engine/nn/optim/optimizer.h"
#include "engine/train/model_folder.h"
#include "models/lora/lora.h"
#include "sharding/full_parameters.h"
#include "sharding/reuse_fp32.h"

namespace loom::plan {
namespace {

// This rank's entries of what a save writes.
nn::StateDict saved_entries(nn::Module& module, const nn::Module& of_adapters) {
  nn::StateDict entries = sharding::local_state_dict(module);
  const auto lora = models::lora_of(of_adapters);
  if (lora != nullptr) std::erase_if(entries, [&](const auto& entry) { return !lora->is_tuned(entry.path); });
  return entries;
}

// Whole tensors in the dtype of the file, and twice the largest in its own.
std::int64_t bytes_of_model(train::Trainer& trainer, const train::CheckpointOptions& options) {
  const io::HfWeights* loaded = train::loaded_weights(trainer.inputs(), trainer.model());
  if (models::lora_of(trainer.sharded_module()) != nullptr) loaded = nullptr;
  std::int64_t written = 0, largest = 0;
  for (const nn::StateEntry& entry : saved_entries(trainer.sharded_module(), trainer.sharded_module())) {
    const std::int64_t numel = entry.local.shard.global_shape.numel();
    const DType trained = entry.local.value.dtype();
    written += numel * element_bytes(train::dtype_to_save(entry.path, trained, options.save_dtype, loaded));
    if (entry.kind == nn::StateEntry::Kind::kParameter) largest = std::max(largest, numel * element_bytes(trained));
  }
  return written + 2 * largest;
}

std::int64_t bytes_of_copies(train::Trainer& trainer, const train::CheckpointOptions& options) {
  std::int64_t bytes = 0;
  for (const nn::StateEntry& entry : saved_entries(trainer.saved_module(), trainer.sharded_module())) {
    bytes += entry.local.value.nbytes();
  }
  return options.no_save_optim ? bytes : bytes + host_bytes_of_load(trainer.optimizer().state_dict());
}

}  // namespace

PhaseMemory phase_memory(const char* phase, const device::Recording& recording) {
  const device::MemoryPeaks peaks = device::peaks_of(recording.memory);
  return {.phase = phase,
          .peak_allocated_bytes = peaks.allocated_bytes,
          .end_allocated_bytes = recording.memory.back().allocated_bytes,
          .by_category_at_peak = peaks.by_category_at_peak};
}

void save_on_device(train::Trainer& trainer) {
  const sharding::JoinedShards joined(trainer.model());
  sharding::local_state_dict(trainer.saved_module());
}

std::int64_t host_bytes_of_save(train::Trainer& trainer, const train::CheckpointOptions& options) {
  const sharding::JoinedShards joined(trainer.model());
  if (options.ckpt_format == train::CheckpointFormat::kHf) return bytes_of_model(trainer, options);
  return options.async_save ? bytes_of_copies(trainer, options) : 0;
}

bool loads_optimizer(const train::CheckpointOptions& options) {
  return options.load && !options.finetune && !options.no_load_optim;
}

nn::OptimizerState saved_state(train::Trainer& trainer) {
  nn::OptimizerState state = trainer.optimizer().state_dict();
  for (auto& [path, pieces] : state.parameters) {
    for (auto& [name, piece] : pieces) {
      if (auto* tensor = std::get_if<nn::LocalTensor>(&piece)) {
        tensor->value = Tensor::meta(tensor->value.shape(), tensor->value.dtype(), name);
      }
    }
  }
  return state;
}

void load_on_device(train::Trainer& trainer, const nn::OptimizerState& state) {
  const sharding::JoinedShards joined(trainer.model());
  sharding::local_state_dict(trainer.saved_module());
  trainer.optimizer().load_state_dict(state);
}

std::int64_t host_bytes_of_load(const nn::OptimizerState& state) {
  std::int64_t bytes = 0;
  for (const auto& [path, pieces] : state.parameters) {
    for (const auto& [name, piece] : pieces) {
      if (const auto* tensor = std::get_if<nn::LocalTensor>(&piece)) bytes += tensor->value.nbytes();
    }
  }
  return bytes;
}

}  // namespace loom::plan
