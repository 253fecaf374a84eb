#include "engine/cli/outputs.h"

#include <algorithm>

#include "engine/core/error.h"
#include "engine/core/is_there.h"
#include "engine/io/output_plan.h"
#include "engine/io/output_target.h"
#include "engine/job/effective_config.h"
#include "engine/virtual_time/find_profile.h"
#include "engine/virtual_time/software.h"

namespace loom::cli {
namespace {

// A program with a save_model of its own may write other names besides.
const std::vector<std::string> kModelFiles = {"config.json", "model.safetensors", job::kEffectiveConfigName};
const std::vector<std::string> kAdapterFiles = {"adapter_config.json", "adapter_model.safetensors",
                                                job::kEffectiveConfigName};
const std::vector<std::string> kCheckpointFiles = {"latest_checkpointed_iteration.txt", job::kEffectiveConfigName};

bool is_same_folder(const std::filesystem::path& one, const std::filesystem::path& other) {
  std::error_code error;
  return one.lexically_normal() == other.lexically_normal() || std::filesystem::equivalent(one, other, error);
}

void add_inputs(io::OutputPlan& plan, const train::TrainSections& a) {
  for (const auto& path : data::data_inputs(a.data)) plan.reads(a.data.mm_data ? "--mm-data" : "--data-path", path);
  if (a.model.model_config) plan.reads("--model-config", *a.model.model_config);
  if (a.model.model_graph) plan.reads("--model-graph", *a.model.model_graph);
  if (a.model.model_weights) plan.reads("--model-weights", *a.model.model_weights);
  if (a.model.init_from_hf_path) plan.reads("--init-from-hf-path", *a.model.init_from_hf_path);
  if (a.model.mm_model) plan.reads("--mm-model", *a.model.mm_model);
  if (a.objective.ref_model) plan.reads("--ref-model", *a.objective.ref_model);
  if (a.objective.ref_logps_cache && is_there(*a.objective.ref_logps_cache))
    plan.reads("--ref-logps-cache", *a.objective.ref_logps_cache);
  // A run that goes on with adapters may put the new ones in their place.
  if (a.model.lora.load && !(a.checkpoint.save && is_same_folder(*a.model.lora.load, *a.checkpoint.save)))
    plan.reads("--lora-load", *a.model.lora.load);
  if (a.parallel.fsdp2_config_path) plan.reads("--fsdp2-config-path", *a.parallel.fsdp2_config_path);
  // A run that goes on usually saves where it loads: checkpoints there are added, never written over.
  if (a.checkpoint.load && !(a.checkpoint.save && is_same_folder(*a.checkpoint.load, *a.checkpoint.save)))
    plan.reads("--load", *a.checkpoint.load);
}

void add_device(io::OutputPlan& plan, const std::string& flag, const std::string& profile) {
  plan.reads(flag, virtual_time::find_profile_file(profile, flag));
}

// The report reads the metrics back.
void check_metrics_of_report(const job::Job& a) {
  if (!a.report.path || io::resolve_output(a.log.metrics_path).kind == io::OutputTarget::Kind::kFile) return;
  config_error(
      "--metrics-path: {} is not a regular file, but --report reads the metrics back; give a file, or remove "
      "--report",
      a.log.metrics_path.string());
}

void add_outputs_of_rank_0(io::OutputPlan& plan, const job::Job& a) {
  const bool checkpoints = a.checkpoint.ckpt_format == train::CheckpointFormat::kTorchDcp;
  const std::vector<std::string>& of_model = a.model.lora.on() ? kAdapterFiles : kModelFiles;
  if (a.checkpoint.save) plan.writes_folder("--save", *a.checkpoint.save, checkpoints ? kCheckpointFiles : of_model);
  plan.writes_file("--metrics-path", a.log.metrics_path);
  if (a.objective.ref_logps_cache && !is_there(*a.objective.ref_logps_cache))
    plan.writes_file("--ref-logps-cache", *a.objective.ref_logps_cache);
  if (a.report.path) plan.writes_file("--report", *a.report.path);
  if (a.report.memory_snapshot) plan.writes_file("--memory-snapshot", *a.report.memory_snapshot);
}

// Threads share a process: one of them is the last rank.
bool has_last_rank(const launch::LaunchOptions& launch, std::optional<int> rank) {
  return !rank || *rank == launch.ranks - 1;
}

bool writes_profile(const observe::ProfileOptions& profile, const train::ScheduleOptions& schedule,
                    std::optional<int> rank) {
  const observe::ProfileOptions& p = profile;
  return p.enabled && p.step_start < schedule.train_iters && (!rank || std::ranges::count(p.ranks, *rank) > 0);
}

}  // namespace

std::vector<io::OutputLock> open_outputs(const job::Job& a, std::optional<int> rank) {
  io::OutputPlan plan;
  add_inputs(plan, a);
  if (a.report.path || a.report.memory_snapshot) add_device(plan, "--report-device", a.report.device);
  if (a.profile.enabled && a.profile.device) add_device(plan, "--profile-device", *a.profile.device);
  const bool first = rank.value_or(0) == 0;
  if (first) add_outputs_of_rank_0(plan, a);
  if (a.log.tensorboard_dir && has_last_rank(a.launch, rank))
    plan.writes_folder("--tensorboard-dir", *a.log.tensorboard_dir);
  if (writes_profile(a.profile, a.schedule, rank)) plan.writes_folder("--profile-save-path", a.profile.save_path);
  plan.check();
  check_metrics_of_report(a);
  plan.prepare();
  std::vector<io::OutputLock> locks;
  if (!first) return locks;
  if (a.checkpoint.save) locks.push_back(io::OutputLock::of_folder("--save", *a.checkpoint.save));
  if (io::resolve_output(a.log.metrics_path).kind == io::OutputTarget::Kind::kFile) {
    locks.push_back(io::OutputLock::of_file("--metrics-path", a.log.metrics_path));
  }
  return locks;
}

void open_outputs(const PlanArguments& a) {
  io::OutputPlan plan;
  add_inputs(plan, a.train);
  add_device(plan, "--device", a.device);
  if (a.software) plan.reads("--software", virtual_time::find_software_file(*a.software));
  if (a.json && *a.json != "-") plan.writes_file("--json", *a.json);
  if (a.trace) plan.writes_file("--trace", *a.trace);
  if (a.write_config) plan.writes_file("--write-config", *a.write_config);
  if (a.train.report.path) plan.writes_file("--report", *a.train.report.path);
  if (a.train.report.memory_snapshot) plan.writes_file("--memory-snapshot", *a.train.report.memory_snapshot);
  plan.check();
  plan.prepare();
}

}  // namespace loom::cli
