#include "engine/cli/words/training_flags.h"

#include <array>
#include <fmt/format.h>

#include "engine/core/error.h"
#include "engine/core/parse_number.h"
#include "engine/core/shown_text.h"

namespace loom::cli {
namespace {

constexpr const char* kCommon = "Common flags";

bool not_negative(double x) { return x >= 0; }
bool is_time(double x) { return x >= 0 && x <= 1e9; }
bool is_price(double x) { return x > 0 && x <= 1e6; }

// As people write it: "1e12", "300B", "15T".
double read_tokens(const std::string& word) {
  constexpr std::array<std::pair<char, double>, 5> kUnits{
      {{'K', 1e3}, {'M', 1e6}, {'B', 1e9}, {'G', 1e9}, {'T', 1e12}}};
  std::string_view number = word;
  double unit = 1;
  for (const auto& [letter, size] : kUnits) {
    if (!number.ends_with(letter)) continue;
    unit = size;
    number.remove_suffix(1);
    break;
  }
  const double tokens = parse_number<double>(number).value_or(0) * unit;
  if (tokens >= 1 && tokens <= 1e18) return tokens;
  config_error("--tokens is {}; use a number of tokens from 1 to 1e18, such as 1e12, 300B or 15T", shown_text(word));
}

std::string type_of(const job::Key& key) {
  return key.kind == job::Kind::kChoice ? fmt::format("{{{}}}", fmt::join(key.words(), ",")) : std::string(key.type);
}

void add_key(const job::Key& key, Program program, Command& command, job::Job& job) {
  const bool shown = !(plans(program) && key.hidden_in_plan) && !(is_users(program) && key.hidden_in_users_programs);
  const bool list = key.kind == job::Kind::kTexts || key.kind == job::Kind::kNumbers;
  NewFlag flag{.names = std::string(key.flags),
               .type = type_of(key),
               .default_text = default_text(key),
               .about = std::string(key.about),
               .group = std::string(shown ? key.heading : ""),
               .common = shown && key.common ? kCommon : "",
               .most = list ? kAnyNumber : 1};
  if (key.kind == job::Kind::kToggle) return command.add_toggle(flag, [&key, &job](bool on) { key.set(job, on); });
  flag.take = [&key, &job, &command](const std::vector<std::string>& words) {
    check_are_values(command, std::string(key.name()), type_of(key), words);
    key.set(job, read_value(key, words));
  };
  command.add(flag);
}

}  // namespace

void add_training(Command& command, Program program, job::Job& job) {
  for (const job::Key& key : job::keys()) {
    if (key.is_in(program)) add_key(key, program, command, job);
  }
  Flags flags(command);
  for (const job::Key& key : job::foreign_keys()) {
    if (!key.is_in(program)) continue;
    flags.noted(key, [&job, &key](const std::string& value) { job.written.foreign.emplace_back(key.name(), value); });
  }
}

void add_plan(Flags& flags, PlanArguments& a, int& world_size) {
  flags.group("Plan", true);
  flags.whole("--world-size", world_size, 1, "Devices", "--nproc-per-node");
  flags.text("--device", "PROFILE", a.device, "Device profile: a file, or a name in configs/devices", a.device);
  flags.text("--software", "NAME", a.software, "Release of the training software: a name in configs/software");
  flags.text("--json", "FILE", a.json, "Write the plan as JSON; - is standard output");
  flags.text("--trace", "FILE", a.trace, "Write the planned step for Perfetto (ui.perfetto.dev)");
  flags.text("--expert-load", "FILE", a.expert_load,
             "How many tokens each expert gets: expert_load: [3, 1, ...]; the rank with most is planned", "balanced");
  flags.toggle("--sweep", a.sweep,
               "Try degrees of parallelism, sharding, recompute, prefetch, micro-batches; rank what fits");
  flags.choice<PlanArguments::Fit>(
      "--fit", a.fit,
      {{"nothing", PlanArguments::Fit::kNothing},
       {"micro-batch", PlanArguments::Fit::kMicroBatch},
       {"world-size", PlanArguments::Fit::kWorldSize},
       {"seq-length", PlanArguments::Fit::kSeqLength}},
      "Search the largest micro-batch, smallest world or longest sequence that fits; a --global-batch-size is kept");
  flags.text("--write-config", "FILE", a.write_config, "Write what --sweep or --fit chose as fsdp2_config.yaml");
  flags.whole("--row", a.row, 0, "The row of a sweep that --write-config writes; 0 is the fastest");
  flags.group("Plan: comparison and cost");
  flags.parts("--what-if", "FIGURE=FACTOR",
              fmt::format("Scale figures of the device, as links=0.7,matrix=2: {}",
                          fmt::join(virtual_time::what_if_names(), ", ")),
              [&a](const std::vector<std::string>& words) {
                a.what_if.clear();
                for (const std::string& word : words) a.what_if.push_back(virtual_time::read_what_if(word));
              });
  flags.text("--fp8-recipe", "NAME", a.fp8_recipe,
             "Plan linear layers in FP8: tensorwise, rowwise or delayed; training has no FP8");
  flags.toggle("--fp8-param-gather", a.fp8_param_gather, "Plan gathers of their weights in FP8");
  flags.texts("--compare", "FILE", a.compare,
              "Plan with each of two files, fsdp2_config.yaml or of another dialect, and show both side by side");
  flags.taken("--tokens", "N", "Tokens of a training, as 1e12 or 300B: its steps, days and device hours",
              [&a](const std::string& word) { a.tokens = read_tokens(word); });
  flags.optional_real("--price-per-device-hour", a.price_per_device_hour, is_price, "a price above 0, at most 1e6",
                      "Price of a device for an hour: the price of the training of --tokens");
}

void add_compare(Flags& flags, CompareArguments& a) {
  flags.group("Runs");
  flags.text("A", "PATH", a.a, "metrics.jsonl, an event file of TensorBoard, or a folder that holds them");
  flags.text("B", "PATH", a.b, "The same of the other run");
  flags.group("Comparison");
  flags.real("--tolerance", a.tolerance, not_negative, "a number of at least 0",
             "Relative error up to which values are the same");
  flags.toggle("--assert-equal", a.assert_equal,
               "Accepted as torchtitan has it; status 1 at a difference is always so");
}

void add_calibrate(Flags& flags, CalibrateArguments& a) {
  flags.group("Kernels");
  flags.text("--kernel-times", "FILE", a.kernel_times, "Measured kernels: JSON, as docs/calibration.md describes it");
  flags.real("--least-us", a.least_us, is_time, "a time from 0 to 1e9 us",
             "Kernels below this time show the host's dispatch, and are left out");
  flags.group("Profile");
  flags.text("--device", "PROFILE", a.device, "Profile whose other figures stay: a file, or a name in configs/devices",
             a.device);
  flags.text("--write-profile", "FILE", a.write_profile, "Write the fitted profile; its name is that of the file");
  flags.text("--json", "FILE", a.json, "Write errors and figures as JSON; - is standard output");
}

}  // namespace loom::cli
