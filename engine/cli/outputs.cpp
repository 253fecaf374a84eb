#include "engine/cli/outputs.h"

#include <algorithm>

#include "engine/core/error.h"
#include "engine/io/output_plan.h"
#include "engine/io/output_target.h"
#include "engine/job/effective_config.h"
#include "engine/virtual_time/find_profile.h"

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

bool is_there(const std::filesystem::path& path) {
  std::error_code unreadable;
  return std::filesystem::exists(path, unreadable);
}

void add_inputs(io::OutputPlan& plan, const train::TrainArguments& a) {
  for (const auto& path : data::data_inputs(a)) plan.reads("--data-path", path);
  if (a.model_config) plan.reads("--model-config", *a.model_config);
  if (a.init_from_hf_path) plan.reads("--init-from-hf-path", *a.init_from_hf_path);
  if (a.ref_model) plan.reads("--ref-model", *a.ref_model);
  if (a.ref_logps_cache && is_there(*a.ref_logps_cache)) plan.reads("--ref-logps-cache", *a.ref_logps_cache);
  // A run that goes on with adapters may put the new ones in their place.
  if (a.lora.load && !(a.save && is_same_folder(*a.lora.load, *a.save))) plan.reads("--lora-load", *a.lora.load);
  if (a.fsdp2_config_path) plan.reads("--fsdp2-config-path", *a.fsdp2_config_path);
  // A run that goes on usually saves where it loads: checkpoints there are added, never written over.
  if (a.load && !(a.save && is_same_folder(*a.load, *a.save))) plan.reads("--load", *a.load);
}

void add_device(io::OutputPlan& plan, const std::string& flag, const std::string& profile) {
  plan.reads(flag, virtual_time::find_profile_file(profile, flag));
}

// The report reads the metrics back.
void check_metrics_of_report(const ProgramArguments& a) {
  if (!a.report || io::resolve_output(a.metrics_path).kind == io::OutputTarget::Kind::kFile) return;
  config_error(
      "--metrics-path: {} is not a regular file, but --report reads the metrics back; give a file, or remove "
      "--report",
      a.metrics_path.string());
}

void add_outputs_of_rank_0(io::OutputPlan& plan, const ProgramArguments& a) {
  const bool checkpoints = a.ckpt_format == train::CheckpointFormat::kTorchDcp;
  const std::vector<std::string>& of_model = a.lora.on() ? kAdapterFiles : kModelFiles;
  if (a.save) plan.writes_folder("--save", *a.save, checkpoints ? kCheckpointFiles : of_model);
  plan.writes_file("--metrics-path", a.metrics_path);
  if (a.ref_logps_cache && !is_there(*a.ref_logps_cache)) plan.writes_file("--ref-logps-cache", *a.ref_logps_cache);
  if (a.report) plan.writes_file("--report", *a.report);
}

// Threads share a process: one of them is the last rank.
bool has_last_rank(const ProgramArguments& a, std::optional<int> rank) { return !rank || *rank == a.ranks - 1; }

bool writes_profile(const ProgramArguments& a, std::optional<int> rank) {
  const observe::ProfileOptions& p = a.profile;
  return p.enabled && p.step_start < a.train_iters && (!rank || std::ranges::count(p.ranks, *rank) > 0);
}

}  // namespace

std::vector<io::OutputLock> open_outputs(const ProgramArguments& a, std::optional<int> rank) {
  io::OutputPlan plan;
  add_inputs(plan, a);
  if (a.report) add_device(plan, "--report-device", a.report_device);
  if (a.profile.enabled && a.profile.device) add_device(plan, "--profile-device", *a.profile.device);
  const bool first = rank.value_or(0) == 0;
  if (first) add_outputs_of_rank_0(plan, a);
  if (a.tensorboard_dir && has_last_rank(a, rank)) plan.writes_folder("--tensorboard-dir", *a.tensorboard_dir);
  if (writes_profile(a, rank)) plan.writes_folder("--profile-save-path", a.profile.save_path);
  plan.check();
  check_metrics_of_report(a);
  plan.prepare();
  std::vector<io::OutputLock> locks;
  if (!first) return locks;
  if (a.save) locks.push_back(io::OutputLock::of_folder("--save", *a.save));
  if (io::resolve_output(a.metrics_path).kind == io::OutputTarget::Kind::kFile) {
    locks.push_back(io::OutputLock::of_file("--metrics-path", a.metrics_path));
  }
  return locks;
}

void open_outputs(const PlanArguments& a) {
  io::OutputPlan plan;
  add_inputs(plan, a.train);
  add_device(plan, "--device", a.device);
  if (a.json && *a.json != "-") plan.writes_file("--json", *a.json);
  if (a.trace) plan.writes_file("--trace", *a.trace);
  if (a.train.report) plan.writes_file("--report", *a.train.report);
  plan.check();
  plan.prepare();
}

}  // namespace loom::cli
