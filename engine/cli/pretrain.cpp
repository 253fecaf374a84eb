#include "engine/cli/pretrain.h"

#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <iostream>
#include <optional>
#include <vector>

#include "engine/cli/exit_status.h"
#include "engine/cli/plan_command.h"
#include "engine/core/error.h"
#include "engine/core/log.h"
#include "engine/core/shown_text.h"
#include "engine/launch/run_ranks.h"
#include "engine/observe/profiler.h"
#include "engine/observe/report_run.h"
#include "engine/observe/schedule_printer.h"
#include "engine/train/inputs.h"
#include "engine/train/loop.h"
#include "engine/train/metrics.h"
#include "engine/train/progress.h"
#include "engine/train/same_job.h"
#include "engine/train/trainer.h"
#include "engine/virtual_time/find_profile.h"
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

void describe(const train::TrainArguments& arguments, const train::TrainingInputs& inputs, nn::Module& model,
              std::ostream& out) {
  // The model inside a wrapper of one (models::TransformersModel) is what users know.
  out << fmt::format("{} of {} parameters on {} rank{}{}{}\n", models::sharded_module(model).type_name(),
                     model.parameter_count(), arguments.ranks, arguments.ranks == 1 ? "" : "s",
                     inputs.data.about.empty() ? "" : "; ", inputs.data.about);
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

// A rank's run: the trainer and those who watch its steps.
void train_rank(const ProgramArguments& arguments, const train::PretrainCallbacks& callbacks,
                const train::TrainingInputs& inputs, const ObserverInputs& observed, RankContext& context,
                comm::World& world, std::ostream& out) {
  train::set_up_rank(context, arguments);
  train::Trainer trainer(arguments, callbacks, inputs, world);
  const bool first = context.rank() == 0;
  if (first) describe(arguments, inputs, trainer.model(), out);

  train::Progress progress({.total_steps = arguments.train_iters,
                            .log_interval = arguments.log_interval,
                            .terminal = train::is_terminal(STDOUT_FILENO),
                            .shown = first,
                            .loss_unit = callbacks.loss_unit},
                           out);
  observe::Profiler profiler(arguments.profile, observed.profile_device,
                             {.executor = arguments.device_executor, .train_iters = arguments.train_iters});
  if (const auto warning = observe::profile_warning(arguments.profile, arguments.train_iters); warning && first) {
    logger().warn("{}", *warning);
  }
  std::vector<train::StepObserver*> observers{&profiler};
  std::optional<observe::SchedulePrinter> printer;
  if (arguments.print_schedule) {
    printer.emplace(arguments.train_iters, [&](std::string_view text) { progress.note(text); });
    observers.push_back(&*printer);
  }
  std::optional<observe::RunReport> report;
  std::optional<train::MetricsWriter> metrics;
  if (first && observed.report) {
    report.emplace(arguments, arguments, *observed.report, about_run(arguments, inputs, trainer.model()));
    observers.push_back(&*report);
  }
  if (first) observers.push_back(&metrics.emplace(arguments.metrics_path));
  observers.push_back(&progress);
  train::run_steps(trainer, arguments, inputs.data, observers);

  if (arguments.save) {
    trainer.save(*arguments.save);
    if (first) out << fmt::format("model written to {}\n", escaped(arguments.save->string()));
  }
  if (report) {
    report->write();
    out << fmt::format("report written to {}\n", escaped(arguments.report->string()));
  }
  if (callbacks.after_training) {
    std::ostream silent(nullptr);
    callbacks.after_training(trainer.model(), arguments, first ? out : silent);
  }
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
  const train::TrainingInputs inputs = train::read_inputs(arguments, callbacks);
  const ObserverInputs observed = read_observer_inputs(arguments);
  const std::vector<comm::SaidEntry> entries = entries_of(arguments, callbacks, inputs);
  const comm::CommOptions options{std::chrono::minutes(arguments.distributed_timeout_minutes)};
  const launch::RankMain main = [&](RankContext& context, comm::World& world) {
    if (!entries.empty() && world.size() > 1) train::check_same_job(entries, *world.everyone());
    train_rank(arguments, callbacks, inputs, observed, context, world, out);
  };
  if (launch::launched_by_mpi()) {
    launch::run_mpi_rank(options, main);
  } else {
    launch::run_ranks(arguments.ranks, options, main);
  }
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
