// explain_gpu_runs DIR: what real runs of PyTorch FSDP2 on a GPU say is explained as it was.
//
// Out of memory   each case of DIR/h200_out_of_memory.json.gz: memory was capped at a known module, and the log has the
//                 traceback and the text. The first place has the phase, and the module, or the work of FSDP and its
//                 group. One case is of a request that no plan has: the partial sums of an embedding's gradient, whose
//                 number depends on the tokens; it is said to have no place.
// Traces          each of DIR/h200_traces.json: the busy time within 5 % of the plan, forward and backward within 10 %;
//                 FSDP's order is the plan's, event for event.
// Peaks           each job of DIR/h200_peaks.json: what is allocated at most in forward, backward and optimizer of its
//                 third step, within 0.1 % of the plan.
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sstream>

#include "engine/cli/commands/explain_command.h"
#include "engine/cli/commands/plan_command.h"
#include "engine/cli/hub_callbacks.h"
#include "engine/cli/words/arguments.h"
#include "engine/dialects/hub_models.h"
#include "engine/io/gzip.h"
#include "tests/support/case_json.h"
#include "tests/support/exact_files.h"
#include "tests/support/files.h"
#include "tests/support/parity_report.h"

namespace loom::test::explain_gpu_runs {
namespace {

using Json = nlohmann::json;

constexpr double kBusy = 0.05;
constexpr double kPhase = 0.1;
constexpr double kPeak = 0.001;

CaseJson read_packed(const std::filesystem::path& path) {
  return {Json::parse(io::text_of_file(path, std::size_t{1} << 26)), path.string()};
}

// The words of the job of a case.
std::vector<std::string> job_of(const CaseJson& one, const CaseJson& configs, const std::filesystem::path& folder) {
  const std::string model = one.at("model");
  write_file(folder / "config.json", configs.at(model).raw().dump());
  write_file(folder / "fsdp2.yaml",
             fmt::format("sharding_size: auto\nparam_dtype: bf16\nreduce_dtype: fp32\nreshard_after_forward: {}\n"
                         "sub_modules_to_wrap: [\"model.embed_tokens\", \"model.layers.{{*}}\", \"lm_head\"]\n",
                         one.at("reshard").get<bool>()));
  const auto number = [&](const char* key) { return fmt::to_string(one.at(key).get<int>()); };
  return {"--model-config",
          (folder / "config.json").string(),
          "--use-torch-fsdp2",
          "--fsdp2-config-path",
          (folder / "fsdp2.yaml").string(),
          "--world-size",
          number("world"),
          "--seq-length",
          number("sequence"),
          "--micro-batch-size",
          number("micro_batch"),
          "--device",
          "h200",
          "--kernels",
          "pytorch",
          "--use-flash-attn",
          "--loss-in-model",
          "--json",
          "-"};
}

Json explained(std::vector<std::string> words, const std::vector<std::string>& job) {
  words.insert(words.begin(), {"shardloom", "explain"});
  words.insert(words.end(), job.begin(), job.end());
  std::vector<const char*> argv;
  for (const std::string& word : words) argv.push_back(word.c_str());
  const auto parsed =
      cli::parse_arguments(static_cast<int>(argv.size()), argv.data(), {.cores = 1}, dialects::hub_models());
  std::ostringstream out;
  cli::run_explain(std::get<cli::ExplainArguments>(parsed), out);
  return Json::parse(out.str());
}

// Of FSDP's own work: what its places are.
bool is_of_work(const std::string& what, const std::string& work) {
  if (work == "unshard") return what == "buffer of an all-gather";
  if (work == "wait_for_unshard") return what == "whole parameters";
  return what == "buffer of a reduce-scatter" || what == "gradient shards";
}

bool is_below(const std::string& module, const std::string& above) {
  return module == above || module.starts_with(above + ".");
}

// Whether a place is that of the case.
bool is_place_of(const CaseJson& one, const Json& place) {
  const bool phase = place.at("phase") == one.at("phase").get<std::string>();
  const std::string module = one.at("module");
  if (one.at("work").size() == 0) return phase && is_below(place.at("module"), module);
  const CaseJson work = one.at("work").at(std::size_t{0});
  return phase && is_of_work(place.at("what"), work.at(std::size_t{0})) &&
         place.at("group") == work.at(std::size_t{1}).get<std::string>();
}

void compare_out_of_memory(const CaseJson& one, const CaseJson& configs, const std::string& name,
                           ParityReport& report) {
  const Scratch scratch("explain_gpu_runs");
  const std::filesystem::path& folder = scratch.path();
  std::string log;
  std::istringstream lines(one.at("log").get<std::string>());
  for (std::string line; std::getline(lines, line);) log += "[rank0]: " + line + "\n";
  write_file(folder / "run.log", log);
  const Json place = explained({(folder / "run.log").string()}, job_of(one, configs, folder)).at("memory").at("place");
  const bool is_embedding = one.at("module") == "model.embed_tokens" && one.at("phase") == "backward";
  if (!place.at("size_matches").get<bool>()) {
    is_embedding ? report.passed(name, "no place, and none in the plan") : report.failed(name, "it has no place");
    return;
  }
  const Json& first = place.at("places").at(0);
  if (is_place_of(one, first)) return report.passed(name, first.at("what").get<std::string>());
  report.failed(name, fmt::format("it was {} of {}, and the first place is {}", one.at("phase").get<std::string>(),
                                  one.at("module").get<std::string>(), first.dump()));
}

void compare_trace(const CaseJson& one, const CaseJson& configs, const std::filesystem::path& folder,
                   ParityReport& report) {
  const std::string name = one.at("model");
  const Scratch scratch("explain_gpu_runs");
  const Json found =
      explained({"--trace", (folder / (name + ".trace.json.gz")).string()}, job_of(one, configs, scratch.path()));
  const Json &real = found.at("real"), &planned = found.at("planned");
  std::string differences;
  const auto hold = [&](const std::string& what, const Json& a, const Json& b, double within) {
    const double ratio = a.get<double>() / b.get<double>();
    if (std::abs(ratio - 1) > within) differences += fmt::format("{} is {:.3f} of the plan's; ", what, ratio);
  };
  hold("busy", real.at("busy_us"), planned.at("busy_us"), kBusy);
  for (const std::size_t phase : {0, 1}) {  // forward and backward
    const Json &of_trace = real.at("phases").at(phase), &of_plan = planned.at("phases").at(phase);
    hold(of_trace.at("phase").get<std::string>(), of_trace.at("us"), of_plan.at("us"), kPhase);
  }
  if (real.at("order") != planned.at("order")) differences += "another order; ";
  differences.empty() ? report.passed("trace " + name, fmt::format("{} kernels", real.at("works").get<int>()))
                      : report.failed("trace " + name, differences);
}

Json planned(std::vector<std::string> words) {
  words.insert(words.begin(), {"shardloom", "plan"});
  std::vector<const char*> argv;
  for (const std::string& word : words) argv.push_back(word.c_str());
  const auto parsed =
      cli::parse_arguments(static_cast<int>(argv.size()), argv.data(), {.cores = 1}, dialects::hub_models());
  const auto& arguments = std::get<cli::PlanArguments>(parsed);
  std::ostringstream out;
  cli::run_plan(arguments, cli::hub_callbacks(arguments.train), out);
  return Json::parse(out.str());
}

void compare_peaks(const CaseJson& one, const CaseJson& configs, const std::string& name, ParityReport& report) {
  const Scratch scratch("explain_gpu_runs");
  const Json plan = planned(job_of(one, configs, scratch.path()));
  double worst = 0;
  for (const Json& phase : plan.at("memory").at("phases")) {
    const double real = one.at("peaks").at(phase.at("phase").get<std::string>()).get<double>();
    worst = std::max(worst, std::abs(phase.at("peak_allocated_bytes").get<double>() / real - 1));
  }
  const std::string text = fmt::format("{:.4f} % from the plan at most", 100 * worst);
  worst <= kPeak ? report.passed(name, text) : report.failed(name, text);
}

int run(const std::filesystem::path& folder) {
  ParityReport report;
  const CaseJson peaks = read_packed(folder / "h200_peaks.json");
  for (std::size_t i = 0; i < peaks.at("rows").size(); ++i) {
    compare_peaks(peaks.at("rows").at(i), peaks.at("configs"), fmt::format("peaks {}", i), report);
  }
  peaks.check_all_read({"reserved"});
  const CaseJson memory = read_packed(folder / "h200_out_of_memory.json.gz");
  for (std::size_t i = 0; i < memory.at("cases").size(); ++i) {
    const CaseJson one = memory.at("cases").at(i);
    compare_out_of_memory(one, memory.at("configs"), fmt::format("out of memory {}", i), report);
  }
  memory.check_all_read({"capped_at", "step", "device"});
  const CaseJson traces = read_packed(folder / "h200_traces.json");
  for (std::size_t i = 0; i < traces.at("traces").size(); ++i) {
    const CaseJson one = traces.at("traces").at(i);
    compare_trace(one, traces.at("configs"), folder, report);
  }
  traces.check_all_read({"step_ms", "device"});
  return report.finish();
}

}  // namespace
}  // namespace loom::test::explain_gpu_runs

int main_of_explain_gpu_runs(int argc, char** argv) {
  return loom::test::parity_main(argc, argv, "explain_gpu_runs", loom::test::explain_gpu_runs::run);
}
