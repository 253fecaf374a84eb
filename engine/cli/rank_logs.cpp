#include "engine/cli/rank_logs.h"

#include "engine/device/device.h"
#include "engine/train/step_volume.h"

namespace loom::cli {
namespace {

log::MemoryFigures memory_now() {
  const device::AllocatorStats stats = device::Device::current().memory().stats().allocator;
  return {.reserved_bytes = stats.reserved_bytes,
          .allocated_bytes = stats.allocated_bytes,
          .max_reserved_bytes = stats.peak_reserved_bytes,
          .max_allocated_bytes = stats.peak_allocated_bytes};
}

}  // namespace

RankLogs::RankLogs(const job::Job& a, train::Trainer& trainer, int rank, std::ostream& out)
    : arguments_(a), out_(out), says_begin_(rank == 0 && a.log.log_format == log::LogFormat::kMegatron) {
  if (rank == 0 && (a.log.check_for_spiky_loss || a.log.check_for_large_grads)) {
    spikes_.emplace(a.log.check_for_spiky_loss, a.log.check_for_large_grads);
  }
  if (says_begin_) memory_.emplace(a.log.log_interval, memory_now, out);
  nn::Module& module = trainer.sharded_module();
  if (a.log.log_params_norm) {
    params_.emplace(module, trainer.inputs().fsdp2.has_value());
    figures_.params_norm = [this] { return params_->after_step(); };
  }
  if (a.log.log_num_zeros_in_grad) {
    zeros_.emplace(module);
    figures_.zeros_in_grad = [this] { return zeros_->of_step(); };
  }
  if (a.log.log_norms_by_layer) {
    layers_.emplace(module, [&trainer] { return trainer.loss_scale(); });
    figures_.norms_by_layer = [this] { return layers_->of_step(); };
  }
  if (rank != a.launch.ranks - 1) return;
  std::function<double()> flops;
  if (a.log.log_throughput) {
    flops_.emplace([&a, &trainer, &out](const device::Recording& recording) {
      if (a.log.log_format != log::LogFormat::kMegatron) return;
      out << sharding::volume_table(train::step_volume(trainer, a, recording)) << std::flush;
    });
    flops = [this] { return flops_->per_step(); };
  }
  if (a.log.log_format == log::LogFormat::kMegatron) {
    log_.emplace(log::MegatronLogOptions{.train_iters = a.schedule.train_iters,
                                         .log_interval = a.log.log_interval,
                                         .global_batch_size = a.schedule.global_batch_size,
                                         .flops_per_rank = flops,
                                         .figures = figures_},
                 out);
  }
  if (a.log.tensorboard_dir) {
    tensorboard_.emplace(a.log, log::TensorBoardRun{.world_size = a.launch.ranks,
                                                    .global_batch_size = a.schedule.global_batch_size,
                                                    .flops_per_rank = flops,
                                                    .figures = figures_,
                                                    .memory = memory_now});
  }
}

void RankLogs::add_to(std::vector<train::StepObserver*>& observers) {
  if (flops_) observers.push_back(&*flops_);
  if (params_) observers.push_back(&*params_);
  if (zeros_) observers.push_back(&*zeros_);
  if (layers_) observers.push_back(&*layers_);
  if (log_) observers.push_back(&*log_);
  if (memory_) observers.push_back(&*memory_);
  if (tensorboard_) observers.push_back(&*tensorboard_);
  if (spikes_) observers.push_back(&*spikes_);
}

void RankLogs::begin() {
  if (says_begin_) out_ << log::begin_lines(arguments_.schedule.skip_train, log::wall_clock_s()) << std::flush;
}

void RankLogs::end(bool whole) {
  if (says_begin_ && whole && !arguments_.schedule.skip_train) out_ << log::end_line(log::wall_clock_s()) << std::flush;
}

std::optional<std::string> RankLogs::problem() const { return tensorboard_ ? tensorboard_->problem() : std::nullopt; }

}  // namespace loom::cli
