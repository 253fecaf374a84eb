#include "engine/cli/pretrain.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <iostream>
#include <mutex>
#include <optional>
#include <syncstream>
#include <vector>

#include "engine/cli/exit_status.h"
#include "engine/cli/flags_without_effect.h"
#include "engine/cli/outputs.h"
#include "engine/cli/plan_command.h"
#include "engine/cli/rank_logs.h"
#include "engine/core/error.h"
#include "engine/core/log.h"
#include "engine/core/shown_text.h"
#include "engine/launch/launch_context.h"
#include "engine/launch/run_ranks.h"
#include "engine/launch/stop_signals.h"
#include "engine/observe/profiler.h"
#include "engine/observe/report_run.h"
#include "engine/observe/schedule_printer.h"
#include "engine/train/finite.h"
#include "engine/train/inputs.h"
#include "engine/train/loop.h"
#include "engine/train/metrics.h"
#include "engine/train/progress.h"
#include "engine/train/run_checkpoints.h"
#include "engine/train/same_job.h"
#include "engine/train/trainer.h"
#include "engine/virtual_time/find_profile.h"
#include "models/hf/folder_files.h"
#include "models/mixin/fsdp2_mixin.h"
#include "sharding/parallelize.h"

namespace loom::cli {
namespace {

void warn_of_max_connections() {
  const char* connections = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  if (connections == nullptr || std::string_view(connections) != "1") return;
  logger().warn(
      "CUDA_DEVICE_MAX_CONNECTIONS is 1, which changes nothing here; MindSpeed refuses it with FSDP2: export 2 there");
}

// Variables of NPU launch scripts whose effect is not built.
void warn_of_environment() {
  const auto is_on = [](const char* name) {
    const char* value = std::getenv(name);
    return value != nullptr && *value != 0 && std::string_view(value) != "0";
  };
  if (is_on("TASK_QUEUE_ENABLE")) {
    logger().warn(
        "TASK_QUEUE_ENABLE is {}, which prepares operators in a queue of their own on NPUs; it is not built yet and "
        "changes nothing here",
        std::getenv("TASK_QUEUE_ENABLE"));
  }
  if (is_on("CPU_AFFINITY_CONF")) {
    logger().warn(
        "CPU_AFFINITY_CONF is {}, which binds the threads of a rank to the cores beside its device on NPUs; it is not "
        "built yet and changes nothing here: start the program under taskset or numactl",
        std::getenv("CPU_AFFINITY_CONF"));
  }
}

// Where the weights came from, and in which type --save writes them.
std::string loaded_text(const io::HfWeights& weights, train::SaveDType asked) {
  const DType stored = models::main_dtype(weights).value_or(DType::kF32);
  const bool half = stored == DType::kBF16 || stored == DType::kF16;
  std::string saved;
  if (asked == train::SaveDType::kFp32 || (asked == train::SaveDType::kAsLoaded && !half)) saved = "fp32";
  if (saved.empty()) saved = asked == train::SaveDType::kBf16 ? "bf16" : std::string(name(stored));
  return fmt::format("weights of {}: {} tensors, {}; trained in fp32, --save writes {}\n",
                     escaped(weights.folder().string()), weights.names().size(), name(stored), saved);
}

void describe(const train::TrainArguments& arguments, const train::TrainingInputs& inputs, nn::Module& model,
              std::ostream& out) {
  // The model inside a wrapper of one (models::TransformersModel) is what users know.
  out << fmt::format("{} of {} parameters on {} rank{}{}{}\n", models::sharded_module(model).type_name(),
                     model.parameter_count(), arguments.ranks, arguments.ranks == 1 ? "" : "s",
                     inputs.data.about.empty() ? "" : "; ", inputs.data.about);
  if (const io::HfWeights* weights = train::loaded_weights(inputs, model)) {
    out << loaded_text(*weights, arguments.save_dtype);
  }
  warn_of_environment();
  if (!inputs.fsdp2) return;
  warn_of_max_connections();
  for (const std::string& warning : inputs.fsdp2->warnings) logger().warn("{}", warning);
  out << sharding::describe_groups(models::sharded_module(model), inputs.fsdp2->written_as);
  if (inputs.fsdp2->recomputed.empty()) return;
  out << fmt::format("{} of the modules recomputed in backward, {}\n", inputs.fsdp2->recomputed.size(),
                     inputs.fsdp2->use_reentrant ? "reentrant" : "not reentrant");
}

// What is read before the ranks start, beside the training's own inputs; the rank threads of a process share it.
struct ObserverInputs {
  std::optional<observe::ReportInputs> report;
  std::optional<virtual_time::HardwareProfile> profile_device;
};

ObserverInputs read_observer_inputs(const ProgramArguments& arguments) {
  ObserverInputs inputs;
  if (arguments.profile.enabled && arguments.profile.device) {
    inputs.profile_device = virtual_time::find_profile(*arguments.profile.device, "--profile-device");
  }
  if (arguments.report) inputs.report = observe::read_report_inputs(arguments, arguments);
  return inputs;
}

observe::RunReport::About about_run(const train::TrainArguments& arguments, const train::TrainingInputs& inputs,
                                    nn::Module& model) {
  observe::RunReport::About about{
      .model = std::string(models::sharded_module(model).type_name()),
      .parameters = model.parameter_count(),
      .micro_batches = arguments.global_batch_size / (std::int64_t{arguments.micro_batch_size} * arguments.ranks)};
  if (!inputs.fsdp2) return about;
  about.mode = sharding::describe_mode(inputs.fsdp2->layout.replicate, inputs.fsdp2->layout.shard);
  about.warnings = inputs.fsdp2->warnings;
  return about;
}

// How the run of this process's ranks ended, where they all came to their end: what is missing of its outputs, and
// whether a signal stopped it. The rank that reports gives the texts. The run begins with the object.
class RunEnd {
 public:
  double minutes() const {
    return std::chrono::duration<double, std::ratio<60>>(std::chrono::steady_clock::now() - began_).count();
  }
  void lost(const std::optional<std::string>& problem) {
    const std::lock_guard lock(mutex_);
    if (problem) problems_.push_back(*problem);
  }
  void stopped(int signal, const std::string& text) {
    const std::lock_guard lock(mutex_);
    signal_ = signal;
    if (!text.empty()) problems_.insert(problems_.begin(), text);
  }
  // After the last rank of this process.
  void raise_stop() const {
    if (signal_ != 0) throw launch::Interrupted(signal_, fmt::format("{}", fmt::join(problems_, "; ")));
  }
  void raise_problems() const {
    raise_stop();
    if (!problems_.empty()) raise<Error>("the run is done, but {}", fmt::join(problems_, "; "));
  }

 private:
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  std::mutex mutex_;
  int signal_ = 0;
  std::vector<std::string> problems_;
};

std::string stop_text(int signal, std::int64_t step, const train::TrainArguments& arguments, bool saved) {
  const bool checkpoint = arguments.ckpt_format == train::CheckpointFormat::kTorchDcp;
  const std::string_view what = checkpoint ? "checkpoint" : "model";
  return fmt::format("stopped by {} after step {} of {}; {}", launch::signal_name(signal), step, arguments.train_iters,
                     saved ? fmt::format("the {} of that step is in {}", what, arguments.save->string())
                           : fmt::format("no {} is written", what));
}

// True where the model folder was written; said by the rank that reports.
bool save_model(train::Trainer& trainer, const train::TrainArguments& arguments, bool first, RunEnd& end,
                std::ostream& out) {
  if (!arguments.save || arguments.ckpt_format != train::CheckpointFormat::kHf) return false;
  const auto problem = trainer.save(*arguments.save);
  end.lost(problem);
  if (problem) return false;
  if (first) out << fmt::format("model written to {}\n", escaped(arguments.save->string())) << std::flush;
  return true;
}

// A rank's run: the trainer and those who watch its steps.
void train_rank(const ProgramArguments& arguments, const train::PretrainCallbacks& callbacks,
                const train::TrainingInputs& inputs, const ObserverInputs& observed, RankContext& context,
                comm::World& world, RunEnd& end, std::ostream& program_out) {
  std::osyncstream out(program_out);  // the first rank prints, and the last
  out << std::emit_on_flush;
  train::set_up_rank(context, arguments);
  train::Trainer trainer(arguments, callbacks, inputs, world);
  const bool first = context.rank() == 0;
  if (first) {
    warn_of_flags(arguments.without_effect);
    describe(arguments, inputs, trainer.model(), out);
    out << std::flush;
  }

  train::Progress* shown = nullptr;
  train::RunCheckpoints checkpoints(trainer, arguments, world, [&](const std::string& line) {
    shown != nullptr ? shown->note(line) : void(out << line << "\n" << std::flush);
  });
  const std::int64_t begins_at = checkpoints.load().value_or(0);

  train::Progress progress({.total_steps = arguments.train_iters,
                            .first_step = std::min(trainer.state().step, arguments.train_iters),
                            .log_interval = arguments.log_interval,
                            .terminal = train::is_terminal(STDOUT_FILENO) && !launch::launched_by_mpi(),
                            .shown = first && arguments.log_format == train::LogFormat::kShort,
                            .loss_unit = callbacks.loss_unit},
                           out);
  if (arguments.log_format == train::LogFormat::kShort) shown = &progress;
  observe::Profiler profiler(arguments.profile, observed.profile_device,
                             {.executor = arguments.device_executor, .train_iters = arguments.train_iters});
  if (const auto warning = observe::profile_warning(arguments.profile, arguments.train_iters); warning && first) {
    logger().warn("{}", *warning);
  }
  std::vector<train::StepObserver*> observers{&profiler};
  std::optional<observe::SchedulePrinter> printer;
  if (arguments.print_schedule) {
    printer.emplace(arguments.train_iters, [&](std::string_view text) {
      if (arguments.log_format == train::LogFormat::kShort) return progress.note(text);
      if (first) out << text << '\n' << std::flush;
    });
    observers.push_back(&*printer);
  }
  std::optional<observe::RunReport> report;
  std::optional<train::MetricsWriter> metrics;
  if (first && observed.report) {
    report.emplace(arguments, arguments, *observed.report, about_run(arguments, inputs, trainer.model()));
    observers.push_back(&*report);
  }
  const train::MetricsMode mode = begins_at > 0 ? train::MetricsMode::kAppend : train::MetricsMode::kNew;
  if (first) observers.push_back(&metrics.emplace(arguments.metrics_path, mode));
  observers.push_back(&progress);
  observers.push_back(&checkpoints);
  train::FiniteWatch finite;
  observers.push_back(&finite);
  RankLogs logs(arguments, context.rank(), out);
  logs.add_to(observers);
  if (logs.spikes() != nullptr) checkpoints.keep(*logs.spikes());
  logs.begin();
  const train::LoopHooks hooks{.save = [&](std::int64_t) { checkpoints.save(); },
                               .signal = launch::StopSignals::received,
                               .elapsed_minutes = [&] { return end.minutes(); }};
  const train::ExitDecision ended = train::run_steps(trainer, arguments, inputs.data, observers, hooks);
  logs.end(ended.reason == train::EndReason::kLastStep);

  checkpoints.finish();
  const bool saved =
      save_model(trainer, arguments, first, end, out) || checkpoints.last_saved() == trainer.state().step;
  const bool trained = trainer.state().step > begins_at;
  if (first && checkpoints.saves() && trained && !saved && ended.signal == 0) {
    end.lost(fmt::format("no checkpoint of its last step is in {}", arguments.save->string()));
  }
  if (report) {
    report->write();
    out << fmt::format("report written to {}\n", escaped(arguments.report->string())) << std::flush;
  }
  if (first) {
    end.lost(metrics->problem());
    end.lost(finite.problem());
  }
  end.lost(logs.problem());
  if (first && !ended.text.empty()) out << ended.text << "\n";
  if (ended.signal != 0) {
    end.stopped(ended.signal, first ? stop_text(ended.signal, trainer.state().step, arguments, saved) : "");
  }
  if (ended.reason != train::EndReason::kLastStep) return;
  if (callbacks.after_training) {
    std::ostream silent(nullptr);
    callbacks.after_training(trainer.model(), arguments, first ? out : silent);
  }
}

std::optional<int> rank_of_process() {
  if (!launch::launched_by_mpi()) return std::nullopt;
  return launch::LaunchContext::detect().mpi_rank;
}

// What the processes of an MPI job agree on; nothing where the ranks are threads of one.
std::vector<comm::SaidEntry> entries_of(const ProgramArguments& arguments, const train::PretrainCallbacks& callbacks,
                                        const train::TrainingInputs& inputs) {
  if (!launch::launched_by_mpi()) return {};
  std::vector<comm::SaidEntry> entries = train::job_entries(arguments, callbacks, inputs);
  for (const auto& [flag, value] : arguments.added_flags) entries.push_back({flag, escaped(value)});
  entries.push_back({"--sample-bytes", fmt::to_string(arguments.sample_bytes)});
  entries.push_back({"--prompt", escaped(arguments.prompt)});
  return entries;
}

}  // namespace

void pretrain(const ProgramArguments& arguments, const train::PretrainCallbacks& callbacks, std::ostream& out) {
  RunEnd end;
  const train::TrainingInputs inputs = train::read_inputs(arguments, callbacks);
  const ObserverInputs observed = read_observer_inputs(arguments);
  const std::vector<io::OutputLock> locks = open_outputs(arguments, rank_of_process());
  const std::vector<comm::SaidEntry> entries = entries_of(arguments, callbacks, inputs);
  const comm::CommOptions options{std::chrono::minutes(arguments.distributed_timeout_minutes)};
  const launch::StopSignals signals;
  const launch::RankMain main = [&](RankContext& context, comm::World& world) {
    if (!entries.empty() && world.size() > 1) train::check_same_job(entries, *world.everyone());
    train_rank(arguments, callbacks, inputs, observed, context, world, end, out);
    if (launch::launched_by_mpi()) end.raise_stop();
  };
  if (launch::launched_by_mpi()) {
    launch::run_mpi_rank(options, main);
  } else {
    launch::run_ranks(arguments.ranks, options, main);
  }
  end.raise_problems();
}

int pretrain(int argc, const char* const* argv, const train::PretrainCallbacks& callbacks) {
  return exit_status_of(std::filesystem::path(argv[0]).filename().string(), [&] {
    const ParsedProgram parsed = parse_program_arguments(argc, argv, callbacks.extra_args_provider);
    if (const auto* help = std::get_if<EarlyExit>(&parsed)) {
      std::cout << help->text;
      return help->code;
    }
    if (const auto* plan = std::get_if<PlanArguments>(&parsed)) return run_plan(*plan, callbacks, std::cout);
    pretrain(std::get<ProgramArguments>(parsed), callbacks, std::cout);
    return 0;
  });
}

}  // namespace loom::cli
