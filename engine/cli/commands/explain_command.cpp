#include "engine/cli/commands/explain_command.h"

#include <nlohmann/json.hpp>

#include "engine/cli/commands/planned_device.h"
#include "engine/cli/flags_without_effect.h"
#include "engine/cli/hub_callbacks.h"
#include "engine/cli/outputs.h"
#include "engine/cli/words/model_flags.h"
#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/explain/explanation.h"
#include "engine/explain/snapshot_explanation.h"
#include "engine/io/atomic_file.h"
#include "engine/io/output_plan.h"
#include "engine/plan/expert_load.h"

namespace loom::cli {
namespace {

struct Source {
  std::string file;  // empty: the text itself
  explain::LogTexts texts;
};

Source read_source(const std::string& text) {
  std::error_code none;
  if (text == "-" || std::filesystem::exists(text, none)) return {text, explain::read_log(text)};
  return {"", explain::read_text(text)};
}

void check_understood(const Source& source, const std::string& given) {
  if (!source.texts.reports.empty()) return;
  if (!source.file.empty()) {
    config_error("{}: none of its {} lines is an error text that is understood; understood are {}",
                 escaped(source.file), source.texts.lines, explain::understood_texts());
  }
  config_error("{} is neither a file nor an error text that is understood; understood are {}", shown_text(given),
               explain::understood_texts());
}

void open_output(const ExplainArguments& arguments, const Source& source) {
  if (arguments.job) open_outputs(*arguments.job);
  if (!arguments.json || *arguments.json == "-") return;
  io::OutputPlan plan;
  if (!source.file.empty() && source.file != "-") plan.reads("explain", source.file);
  plan.writes_file("--json", *arguments.json);
  plan.check();
  plan.prepare();
}

// Calls `run` with the job of the run.
template <class Run>
auto with_job(const PlanArguments& given, Run run) {
  check_model_flags(given.train.model);
  warn_of_flags(given.train.written.without_effect);
  PlanArguments job = given;
  const virtual_time::HardwareProfile profile = planned_device(given, job).profile;
  if (given.expert_load) job.train.parallel.expert_load = plan::read_expert_load(*given.expert_load);
  const train::PretrainCallbacks callbacks = hub_callbacks(job.train);
  const explain::JobOfRun of_run{job.train, callbacks, profile, {given.micro_batch_size, given.global_batch_size}};
  return run(of_run);
}

explain::Explanation explained(const ExplainArguments& arguments, Source source) {
  if (!arguments.job) return explain::explain(source.file, std::move(source.texts), nullptr);
  return with_job(*arguments.job, [&](const explain::JobOfRun& job) {
    return explain::explain(source.file, std::move(source.texts), &job);
  });
}

template <class Found>
void show(const Found& explanation, const ExplainArguments& arguments, std::ostream& out) {
  const bool json_only = arguments.json && *arguments.json == "-";
  const auto json = [&] {
    return to_json(explanation).dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  };
  out << (json_only ? json() : to_text(explanation));
  if (arguments.json && !json_only) io::write_text(*arguments.json, json());
}

}  // namespace

int run_explain(const ExplainArguments& arguments, std::ostream& out) {
  if (arguments.snapshot) {
    open_output(arguments, {arguments.snapshot->string(), {}});
    show(with_job(*arguments.job,
                  [&](const explain::JobOfRun& job) { return explain::explain_snapshot(*arguments.snapshot, job); }),
         arguments, out);
    return 0;
  }
  Source source = read_source(arguments.text);
  check_understood(source, arguments.text);
  open_output(arguments, source);
  show(explained(arguments, std::move(source)), arguments, out);
  return 0;
}

}  // namespace loom::cli
