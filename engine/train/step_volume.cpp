#include "engine/train/step_volume.h"

#include "models/mixin/fsdp2_mixin.h"

namespace loom::train {

std::vector<sharding::AxisVolume> step_volume(Trainer& trainer, const TrainSections& arguments,
                                              const device::Recording& recording) {
  if (!trainer.inputs().fsdp2 || trainer.pipeline() != nullptr) return {};
  const ScheduleOptions& schedule = arguments.schedule;
  const sharding::StepShape shape{
      .micro_batches = trainer.dims().micro_batches(schedule.global_batch_size, schedule.micro_batch_size),
      .rows = schedule.micro_batch_size,
      .tokens = arguments.data.seq_length,
      .sync_each_batch = trainer.inputs().fsdp2_config->sync_each_batch,
      .reshard_after_backward = trainer.inputs().fsdp2_config->reshard_after_backward};
  return sharding::volume_by_axis(models::sharded_module(trainer.model()), trainer.inputs().fsdp2->recomputed, shape,
                                  recording);
}

}  // namespace loom::train
