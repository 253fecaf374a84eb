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
#include "engine/explain/trace_explanation.h"
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
  if (explain::is_understood(source.texts)) return;
  if (!source.file.empty()) {
    config_error("{}: none of its {} lines is an error text that is understood; understood are {}",
                 escaped(source.file), source.texts.lines, explain::understood_texts());
  }
  config_error("{} is neither a file nor an error text that is understood; understood are {}", shown_text(given),
               explain::understood_texts());
}

void open_output(const ExplainArguments& arguments, const std::string& file) {
  if (arguments.job) open_outputs(*arguments.job);
  if (!arguments.json || *arguments.json == "-") return;
  io::OutputPlan plan;
  if (!file.empty() && file != "-") plan.reads("explain", file);
  if (arguments.snapshot) plan.reads("--snapshot", *arguments.snapshot);
  if (arguments.trace) plan.reads("--trace", *arguments.trace);
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

struct Shown {
  std::string text;
  nlohmann::ordered_json json;
};

template <class Found>
Shown shown(const Found& explanation) {
  return {to_text(explanation), to_json(explanation)};
}

void show(const Shown& explanation, const ExplainArguments& arguments, std::ostream& out) {
  const bool json_only = arguments.json && *arguments.json == "-";
  const std::string json =
      explanation.json.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  out << (json_only ? json : explanation.text);
  if (arguments.json && !json_only) io::write_text(*arguments.json, json);
}

// Both have their own keys.
Shown shown_files(const ExplainArguments& arguments, const explain::JobOfRun& job) {
  Shown all;
  if (arguments.snapshot) all = shown(explain::explain_snapshot(*arguments.snapshot, job));
  if (!arguments.trace) return all;
  const Shown trace = shown(explain::explain_trace(*arguments.trace, job));
  if (!arguments.snapshot) return trace;
  return {all.text + "\n" + trace.text, {{"memory", all.json}, {"time", trace.json}}};
}

}  // namespace

int run_explain(const ExplainArguments& arguments, std::ostream& out) {
  if (arguments.snapshot || arguments.trace) {
    open_output(arguments, "");
    show(with_job(*arguments.job, [&](const explain::JobOfRun& job) { return shown_files(arguments, job); }), arguments,
         out);
    return 0;
  }
  Source source = read_source(arguments.text);
  check_understood(source, arguments.text);
  open_output(arguments, source.file);
  show(shown(explained(arguments, std::move(source))), arguments, out);
  return 0;
}

}  // namespace loom::cli
