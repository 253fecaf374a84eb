#include "engine/cli/rank_run.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fmt/core.h>

#include "engine/cli/environment.h"
#include "engine/cli/flags_without_effect.h"
#include "engine/core/log.h"
#include "engine/core/shown_text.h"
#include "engine/io/atomic_file.h"
#include "engine/job/effective_config.h"
#include "engine/job/saved_arguments.h"
#include "engine/launch/run_ranks.h"
#include "engine/plan/plan_output.h"
#include "engine/train/rank_setup.h"
#include "models/hf/folder_files.h"
#include "models/lora/lora.h"
#include "models/mixin/fsdp2_mixin.h"
#include "sharding/parallelize.h"

namespace loom::cli {
namespace {

// Where the weights came from, and in which type they are trained and --save writes them.
std::string loaded_text(const io::HfWeights& weights, const train::TrainSections& arguments, bool adapters) {
  const DType stored = models::main_dtype(weights).value_or(DType::kF32), trained = arguments.model.params_dtype;
  const std::string of = fmt::format("weights of {}: {} tensors, {}", escaped(weights.folder().string()),
                                     weights.names().size(), name(stored));
  if (adapters) {
    return fmt::format("{}; frozen{}, --save writes the adapters alone\n", of,
                       trained == DType::kF32 ? "" : fmt::format(" in {}", name(trained)));
  }
  const bool half = stored == DType::kBF16 || stored == DType::kF16;
  DType saved = trained == DType::kF32 && half ? stored : trained;  // as loaded
  if (const auto asked = arguments.checkpoint.save_dtype; asked != train::SaveDType::kAsLoaded) {
    saved = asked == train::SaveDType::kFp32 ? DType::kF32 : DType::kBF16;
  }
  return fmt::format("{}; trained in {}, --save writes {}\n", of, name(trained), name(saved));
}

void describe(const train::TrainSections& arguments, const train::TrainingInputs& inputs, nn::Module& model,
              std::ostream& out) {
  // The model inside a wrapper of one (models::TransformersModel) is what users know.
  out << fmt::format("{} of {} parameters on {} rank{}{}{}\n", models::sharded_module(model).type_name(),
                     inputs.pipeline ? inputs.pipeline->parameters : model.parameter_count(), arguments.launch.ranks,
                     arguments.launch.ranks == 1 ? "" : "s", inputs.objective.loaders.about.empty() ? "" : "; ",
                     inputs.objective.loaders.about);
  if (const io::HfWeights* weights = train::loaded_weights(inputs, model)) {
    out << loaded_text(*weights, arguments, inputs.tuning.lora.has_value());
  }
  for (const std::string& line : inputs.said) out << line << "\n";
  if (inputs.tuning.lora) out << models::describe_lora(models::sharded_module(model)) << "\n";
  warn_of_environment(inputs.fsdp2.has_value());
  for (const std::string& warning : inputs.objective.loaders.warnings) log_warning("{}", warning);
  if (!inputs.fsdp2) {
    for (const std::string& line : sharding::describe_recompute(inputs.recomputed)) out << line << "\n";
    return;
  }
  for (const std::string& warning : inputs.fsdp2->warnings) log_warning("{}", warning);
  if (inputs.pipeline) out << train::text_of(*inputs.pipeline) << "\nof rank 0, whose stages are roots of their own:\n";
  out << sharding::describe_groups(models::sharded_module(model), inputs.fsdp2->written_as);
  if (!inputs.fsdp2->offloaded.empty()) {
    out << fmt::format("first arguments of {} of the modules wait in {} host memory, the last one's excepted\n",
                       inputs.fsdp2->offloaded.size(), inputs.fsdp2->pin_memory ? "pinned" : "pageable");
  }
  for (const std::string& line : sharding::describe_recompute(inputs.fsdp2->recomputed)) out << line << "\n";
}

observe::RunReport::About about_run(const train::ScheduleOptions& schedule, const train::TrainingInputs& inputs,
                                    nn::Module& model) {
  observe::RunReport::About about{
      .model = std::string(models::sharded_module(model).type_name()),
      .parameters = inputs.pipeline ? inputs.pipeline->parameters : model.parameter_count(),
      .micro_batches = inputs.dims.micro_batches(schedule.global_batch_size, schedule.micro_batch_size)};
  if (!inputs.fsdp2) return about;
  about.mode = sharding::describe_mode(inputs.fsdp2->layout.replicate, inputs.fsdp2->layout.shard);
  about.warnings = inputs.fsdp2->warnings;
  return about;
}

std::string stop_text(int signal, std::int64_t step, const train::CheckpointOptions& checkpoint_options,
                      const train::ScheduleOptions& schedule, bool saved) {
  const bool checkpoint = checkpoint_options.ckpt_format == train::CheckpointFormat::kTorchDcp;
  const std::string_view what = checkpoint ? "checkpoint" : "model";
  return fmt::format("stopped by {} after step {} of {}; {}", launch::signal_name(signal), step, schedule.train_iters,
                     saved ? fmt::format("the {} of that step is in {}", what, checkpoint_options.save->string())
                           : fmt::format("no {} is written", what));
}

// Before anything of the rank is made.
RankContext& set_up(RankContext& context, const RunSetup& setup) {
  const int rank_of_process = setup.start.ranks_are_processes() ? 0 : context.rank();
  launch::bind_rank(context, setup.host.cores(rank_of_process));
  nn::make_rank(context, train::rank_setup(setup.job, setup.host.memory_of(rank_of_process)));
  return context;
}

// Null where no snapshot is asked for.
std::unique_ptr<observe::SnapshotOfRun> snapshot_of(const RunSetup& setup) {
  const job::Job& job = setup.job;
  if (!job.report.memory_snapshot) return nullptr;
  return std::make_unique<observe::SnapshotOfRun>(
      observe::SnapshotOfRun::Options{*job.report.memory_snapshot, job.memory.alloc_conf, job.schedule.train_iters},
      *setup.observed.snapshot_device);
}

}  // namespace

RankRun::RankRun(const RunSetup& setup, RankContext& context, comm::World& world, RunEnd& end,
                 std::ostream& program_out)
    : setup_(setup),
      job_(setup.job),
      end_(end),
      out_(program_out),
      first_(set_up(context, setup).rank() == 0),
      short_log_(setup.job.log.log_format == log::LogFormat::kShort),
      log_order_(short_log_ ? nullptr : world.everyone("log")),
      snapshot_(first_ ? snapshot_of(setup) : nullptr),
      trainer_(setup.job, setup.callbacks, setup.inputs, world),
      checkpoints_(trainer_, setup.job, job::saved_arguments(setup.job), world,
                   [this](const std::string& line) { say(line); }),
      begins_at_((tell_begin(), checkpoints_.load().value_or(0))),
      profiler_(setup.job.profile, setup.observed.profile_device,
                {.executor = setup.job.launch.device_executor, .train_iters = setup.job.schedule.train_iters}),
      logs_(setup.job, trainer_, context.rank(), out_) {
  progress_.emplace(progress_options(), out_);
  if (first_ && job_.checkpoint.save) {
    io::write_text(*job_.checkpoint.save / job::kEffectiveConfigName, job::effective_config(job_));
  }
  watch();
}

void RankRun::tell_begin() {
  out_ << std::emit_on_flush;
  if (!first_) return;
  warn_of_flags(job_.written.without_effect);
  describe(job_, setup_.inputs, trainer_.model(), out_);
  for (const std::string& note : setup_.host.placement.notes) out_ << note << "\n";
  for (const std::string& line : trainer_.said()) out_ << line << "\n";
  out_ << std::flush;
}

// A line of its own, above the bar where there is one.
void RankRun::say(const std::string& line) {
  if (progress_ && short_log_) return progress_->note(line);
  out_ << line << "\n" << std::flush;
}

void RankRun::note(std::string_view text) {
  if (first_) say(std::string(text));
}

log::ProgressOptions RankRun::progress_options() const {
  const auto descriptor = [&] { return job_.log.metrics_path == "-" ? STDERR_FILENO : STDOUT_FILENO; };
  return {.total_steps = job_.schedule.train_iters,
          .first_step = std::min(begins_at_, job_.schedule.train_iters),
          .log_interval = job_.log.log_interval,
          .terminal = log::is_terminal(descriptor()) && !setup_.start.ranks_are_processes(),
          .columns = log::terminal_columns(descriptor()),
          .shown = first_ && short_log_,
          .loss_unit = setup_.inputs.objective.unit};
}

// In the order in which a step begins for them; it ends for them the other way round.
void RankRun::watch() {
  if (const auto warning = observe::profile_warning(job_.profile, job_.schedule.train_iters); warning && first_) {
    log_warning("{}", *warning);
  }
  observers_.push_back(&profiler_);
  if (job_.report.print_schedule && setup_.inputs.pipeline && first_)
    out_ << train::actions_of(*setup_.inputs.pipeline);
  if (job_.report.print_schedule) {
    printer_.emplace(job_.schedule.train_iters, [this](std::string_view text) { note(text); });
    observers_.push_back(&*printer_);
  }
  if (first_ && setup_.observed.report) {
    report_.emplace(job_, job_.report, *setup_.observed.report,
                    about_run(job_.schedule, setup_.inputs, trainer_.model()));
    observers_.push_back(&*report_);
  }
  if (snapshot_) observers_.push_back(&*snapshot_);
  const log::MetricsMode mode = begins_at_ > 0 ? log::MetricsMode::kAppend : log::MetricsMode::kNew;
  if (first_) observers_.push_back(&metrics_.emplace(job_.log.metrics_path, mode, logs_.figures()));
  observers_.push_back(&*progress_);
  observers_.push_back(&checkpoints_);
  observers_.push_back(&finite_);
  logs_.add_to(observers_);
  if (logs_.spikes() != nullptr) checkpoints_.keep(*logs_.spikes());
}

void RankRun::run() {
  logs_.begin();
  const train::LoopHooks hooks{.save = [this](std::int64_t) { checkpoints_.save(); },
                               .signal = launch::StopSignals::received,
                               .elapsed_minutes = [this] { return end_.minutes(); }};
  const train::ExitDecision ended =
      train::run_steps(trainer_, job_.schedule, setup_.inputs.objective.loaders, observers_, hooks);
  // The last rank has printed its last line before the first one ends the log.
  if (log_order_) log_order_->barrier(comm::kHostLane, "end of the log");
  logs_.end(ended.reason == train::EndReason::kLastStep);
  write_outputs(ended);
  if (ended.reason != train::EndReason::kLastStep || !setup_.callbacks.after_training) return;
  std::ostream silent(nullptr);
  setup_.callbacks.after_training(trainer_.model(), train::TrainArguments(job_), first_ ? out_ : silent);
}

void RankRun::write_outputs(const train::ExitDecision& ended) {
  checkpoints_.finish();
  const bool saved = save_model() || checkpoints_.last_saved() == trainer_.state().step;
  const bool trained = trainer_.state().step > begins_at_;
  if (first_ && checkpoints_.saves() && trained && !saved && ended.signal == 0) {
    end_.lost(fmt::format("no checkpoint of its last step is in {}", job_.checkpoint.save->string()));
  }
  if (first_ && job_.memory.memory_fragmentation) {
    std::string table = plan::pool_table(device::Device::current().memory().pools());
    table.pop_back();
    say(table);
  }
  if (report_) {
    report_->write();
    say(fmt::format("report written to {}", escaped(job_.report.path->string())));
  }
  if (first_) {
    end_.lost(metrics_->problem());
    end_.lost(finite_.problem());
    if (ended.signal == 0) end_.lost(trainer_.problem());
  }
  end_.lost(logs_.problem());
  tell_end(ended, saved);
}

// True where the model folder was written; said by the rank that reports.
bool RankRun::save_model() {
  if (!job_.checkpoint.save || job_.checkpoint.ckpt_format != train::CheckpointFormat::kHf) return false;
  const auto problem = trainer_.save(*job_.checkpoint.save);
  end_.lost(problem);
  if (problem) return false;
  note(fmt::format("model written to {}", escaped(job_.checkpoint.save->string())));
  return true;
}

void RankRun::tell_end(const train::ExitDecision& ended, bool saved) {
  if (!ended.text.empty()) note(ended.text);
  if (ended.signal == 0) return;
  end_.stopped(ended.signal,
               first_ ? stop_text(ended.signal, trainer_.state().step, job_.checkpoint, job_.schedule, saved) : "");
}

}  // namespace loom::cli
