#include "engine/cli/pretrain.h"

#include <iostream>
#include <optional>
#include <vector>

#include "engine/cli/adaptive_run.h"
#include "engine/cli/commands/compared_plans.h"
#include "engine/cli/commands/plan_command.h"
#include "engine/cli/commands/several_hosts.h"
#include "engine/cli/environment.h"
#include "engine/cli/exit_status.h"
#include "engine/cli/host_plan.h"
#include "engine/cli/outputs.h"
#include "engine/cli/plan_profile.h"
#include "engine/cli/rank_run.h"
#include "engine/cli/standard_streams.h"
#include "engine/cli/words/model_flags.h"
#include "engine/core/error.h"
#include "engine/core/log.h"
#include "engine/core/shown_text.h"
#include "engine/dialects/hub_models.h"
#include "engine/job/agreement.h"
#include "engine/launch/local_processes.h"
#include "engine/launch/run_ranks.h"
#include "engine/launch/start.h"
#include "engine/launch/stop_signals.h"
#include "engine/plan/pipeline_split.h"
#include "engine/plan/plan_output.h"
#include "engine/plan/plan_search.h"
#include "engine/plan/smart_swap.h"
#include "engine/train/inputs.h"
#include "engine/train/same_job.h"
#include "engine/virtual_time/find_profile.h"

namespace loom::cli {
namespace {

// The profile of --report-device.
virtual_time::HardwareProfile profile_of_plans(const observe::ReportOptions& job) {
  return plan_profile(job.device, "--report-device");
}

ObserverInputs read_observer_inputs(const job::Job& job) {
  ObserverInputs inputs;
  if (job.profile.enabled && job.profile.device) {
    inputs.profile_device = virtual_time::find_profile(*job.profile.device, "--profile-device");
  }
  if (job.report.memory_snapshot) inputs.snapshot_device = profile_of_plans(job.report);
  if (job.report.path) inputs.report = observe::read_report_inputs(job.model, job.parallel, job.report);
  return inputs;
}

// What the processes of an MPI job agree on; nothing where the ranks are threads of one.
std::vector<comm::SaidEntry> entries_of(const launch::Start& start, const job::Job& job,
                                        const train::PretrainCallbacks& callbacks,
                                        const train::TrainingInputs& inputs) {
  if (!start.ranks_are_processes()) return {};
  std::vector<comm::SaidEntry> entries = job::agreement_entries(job);
  for (comm::SaidEntry& entry : train::job_entries(job, callbacks, inputs)) entries.push_back(std::move(entry));
  return entries;
}

// A device of limited memory: what does not fit is refused by the plan of the step, with what would help, before
// anything is allocated. Remedies are ordered by time on --report-device.
void check_device_memory(const job::Job& job, const train::PretrainCallbacks& callbacks) {
  if (job.memory.device_memory_mib == 0 || job.memory.adaptive_recompute || job.schedule.skip_train) return;
  const virtual_time::HardwareProfile profile = profile_of_plans(job.report);
  plan::PlanSearch search(job, callbacks, profile, {.global_batch_size = job.schedule.global_batch_size});
  const plan::CheckedEstimate checked = search.check();
  if (!checked.out_of_memory) return;
  std::string text = plan::out_of_memory_text(checked);
  text.pop_back();
  throw OutOfMemoryError(text);
}

// The choice of adaptive recompute, printed by the rank that reports.
std::optional<plan::AdaptiveChoice> choose_modes(const job::Job& job, const train::PretrainCallbacks& callbacks,
                                                 std::ostream& out) {
  if (!job.memory.adaptive_recompute) return std::nullopt;
  const virtual_time::HardwareProfile profile = profile_of_plans(job.report);
  const auto choice = cli::choose_modes(job, callbacks, profile, false);
  out << plan::to_text(*choice);
  return choice;
}

// With the tensors chosen that --smart-swap swaps: by plans of this job on --report-device.
job::Job with_smart_swap(const job::Job& given, const train::PretrainCallbacks& callbacks, std::ostream& out) {
  if (!given.swap.smart_swap) return given;
  const virtual_time::HardwareProfile profile = profile_of_plans(given.report);
  const plan::SmartSwap chosen =
      plan::choose_swaps(given, callbacks, profile, plan::swap_budget(given, callbacks, profile));
  out << plan::to_text(chosen) << plan::to_text(chosen.exposed);
  job::Job job = given;
  job.swap.smart_swap_chosen = chosen.tensors();
  return job;
}

// With the layers of the stages that --pipeline-split auto chooses: by plans of this job on --report-device.
job::Job with_split(job::Job job, const train::PretrainCallbacks& callbacks, std::ostream& out) {
  if (job.parallel.pipeline.pipeline_split != train::PipelineSplit::kAuto) return job;
  const auto split = plan::choose_split(job, callbacks, profile_of_plans(job.report));
  out << plan::to_text(*split);
  plan::apply(*split, job.parallel.pipeline);
  return job;
}

// What swap costs on the device of --report, and whether recompute is cheaper.
void tell_swap(const job::Job& job, const train::PretrainCallbacks& callbacks, const train::TrainingInputs& inputs,
               std::ostream& out) {
  const bool by_file = inputs.fsdp2 && !inputs.fsdp2->offloaded.empty();
  if (!job.report.path || (!job.swap.swap_attention && !by_file)) return;
  const virtual_time::HardwareProfile profile = profile_of_plans(job.report);
  out << plan::to_text(plan::estimate_step(job, callbacks, profile, plan::Capacity::kLifted).swaps);
}

}  // namespace

void pretrain(const job::Job& given, const train::PretrainCallbacks& callbacks, std::ostream& standard_out) {
  RunEnd end;
  const launch::Start start = launch::Start::detect();
  const auto deadline = std::chrono::minutes(given.launch.distributed_timeout_minutes);
  if (given.log.log_level) set_log_level(*given.log.log_level);
  log_debug("{}", start.describe());
  if (start.is_scheduler) return launch::serve_store(start.tcp, {deadline});
  if (start.first_runs_all() && start.process > 0) return launch::wait_for_first(start, deadline);
  launch::FirstProcess first_process(start);
  std::ostream& out = given.log.metrics_path == "-" ? std::cerr : standard_out;  // which then has the metrics alone
  std::ostream silent(nullptr);
  const bool first = start.rank().value_or(0) == 0;
  std::ostream& first_out = first ? out : silent;
  for (const std::string& line : given.written.told) first_out << line << "\n";
  for (const std::string& line : check_model_flags(given.model)) first_out << line << "\n";
  const job::Job job = with_smart_swap(with_split(given, callbacks, first_out), callbacks, first_out);
  const auto modes = choose_modes(job, callbacks, first_out);
  const train::TrainingInputs inputs = train::read_inputs(job, callbacks, edit_of(modes));
  const ObserverInputs observed = read_observer_inputs(job);
  if (first) tell_swap(job, callbacks, inputs, out);
  check_device_memory(job, callbacks);
  const launch::StopSignals signals;  // before there is a lock that a signal would leave
  const std::vector<io::OutputLock> locks = open_outputs(job, start.rank());
  const std::vector<comm::SaidEntry> entries = entries_of(start, job, callbacks, inputs);
  const comm::CommOptions options{deadline};
  const HostPlan host = plan_host(job, callbacks, inputs, start);
  const RunSetup setup{start, job, callbacks, inputs, observed, host};
  const launch::RankMain main = [&](RankContext& context, comm::World& world) {
    if (!entries.empty() && world.size() > 1) train::check_same_job(entries, *world.everyone());
    RankRun(setup, context, world, end, out).run();
    if (start.ranks_are_processes()) end.raise_stop();
  };
  launch::run(start, job.launch.ranks, options, main);
  end.raise_problems();
  first_process.succeed();
}

int pretrain(int argc, const char* const* argv, const train::PretrainCallbacks& callbacks) {
  return exit_status_of(std::filesystem::path(argv[0]).filename().string(), [&] {
    const launch::Start start = launch::Start::detect();
    if (const auto status = run_on_several_hosts(argc, argv, start, std::cout)) return *status;
    const ParsedProgram parsed =
        parse_program_arguments(argc, argv, callbacks.extra_args_provider, start, dialects::hub_models());
    if (const auto* help = std::get_if<EarlyExit>(&parsed)) {
      print_help(help->text);
      return help->code;
    }
    if (const auto* plan = std::get_if<PlanArguments>(&parsed)) {
      if (!plan->compared.empty()) return run_compared_plans(*plan, callbacks, callbacks, std::cout);
      return run_plan(*plan, callbacks, std::cout);
    }
    pretrain(std::get<job::Job>(parsed), callbacks, std::cout);
    return 0;
  });
}

}  // namespace loom::cli
