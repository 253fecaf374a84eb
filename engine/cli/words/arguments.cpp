#include "engine/cli/words/arguments.h"

#include <fmt/format.h>

#include "engine/cli/words/argument_rules.h"
#include "engine/cli/words/command_words.h"
#include "engine/cli/words/compared_words.h"
#include "engine/cli/words/completion.h"
#include "engine/cli/words/distributed_optimizer.h"
#include "engine/cli/words/explained_words.h"
#include "engine/cli/words/file_words.h"
#include "engine/cli/words/flags.h"
#include "engine/cli/words/host_optimizer_checks.h"
#include "engine/cli/words/launcher_words.h"
#include "engine/cli/words/mm_files.h"
#include "engine/cli/words/optional_words.h"
#include "engine/cli/words/refusals.h"
#include "engine/cli/words/shape_flags.h"
#include "engine/cli/words/training_flags.h"
#include "engine/core/error.h"
#include "engine/core/parse_number.h"
#include "engine/core/shown_text.h"
#include "engine/core/version.h"
#include "engine/job/foreign.h"

namespace loom::cli {
namespace {

bool finite(double) { return true; }

constexpr const char* kProgramExample =
    "Example:\n"
    "  shardloom train --model-config quickstart --data-path corpus.txt --train-iters 20 --save out\n";
constexpr const char* kTalkExample = "  shardloom generate out --prompt \"template <class T>\"\n";
constexpr const char* kProgramHelp =
    "Flags of a command: shardloom train --help, and so for the others\n"
    "Exit status: 0 done; 1 a run failed or lost an output, or compared runs differ;\n"
    "  2 the command line or a file is wrong; 3 a plan does not fit;\n"
    "  128 + signal stopped by SIGINT, SIGTERM, SIGHUP, SIGUSR1 or SIGUSR2\n";
constexpr const char* kTrainExample =
    "Example:\n  shardloom train --model-config quickstart --data-path corpus.txt --nproc-per-node 2 \\\n"
    "    --use-torch-fsdp2 --fsdp2-config-path quickstart --train-iters 200 --save out\n";
constexpr const char* kPlanExample =
    "Example:\n  shardloom plan --model-config llama3_8b --use-torch-fsdp2 \\\n"
    "    --fsdp2-config-path full_shard --world-size 64 --device h200 --seq-length 8192\n";
constexpr const char* kCompareExample =
    "Example:\n  shardloom compare out_a out_b --tolerance 1e-5\n"
    "Exit status: 0 the runs are the same in all steps in common, 1 they differ,\n"
    "  2 the command line or a file is wrong\n";
constexpr const char* kExplainExample =
    "Example:\n  shardloom explain run.log train.yaml --world-size 8 --device h100\n"
    "  shardloom explain --snapshot rank0.pickle train.yaml --world-size 8 --device h100\n"
    "  shardloom explain --trace rank0.json.gz train.yaml --world-size 8 --device h100\n"
    "Behind the text stands the job of the run, as shardloom plan takes it: a configuration file, and\n"
    "  flags such as --model-config. Without a job, the texts alone are explained.\n";
constexpr const char* kCalibrateExample =
    "Example:\n  shardloom calibrate --kernel-times times.json --device h100 --write-profile my_h100.yaml\n"
    "  shardloom plan ... --device my_h100.yaml\n"
    "The kernels are measured by bench/peers/measure_kernel_times.py.\n";
constexpr const char* kCompletionExample =
    "Example:\n  source <(shardloom completion bash)      a line of ~/.bashrc\n"
    "  source <(shardloom completion zsh)       a line of ~/.zshrc, behind compinit\n"
    "  shardloom completion fish | source       a line of ~/.config/fish/config.fish\n";
constexpr const char* kLintExample =
    "Example:\n  shardloom lint configs/*.yaml --world-size 64 --model-config llama3_8b\n"
    "Exit status: 0 no error, 1 an error in a file, 2 the command line is wrong\n";
constexpr const char* kAdaptExample =
    "Example:\n  shardloom adapt pretrain_qwen3.sh > shardloom_qwen3.sh\n"
    "Changes are listed on standard error. The script is read, and never run.\n";
constexpr const char* kConfigExample =
    "Example:\n  shardloom config train.yaml --training.lr 1e-4 --world-size 8\n"
    "  shardloom config accelerate.yaml --to flat > fsdp2_config.yaml\n"
    "Flags of train may stand beside the file: shardloom config FILE --micro-batch-size 4\n";

void add_lint(Command& command, LintArguments& values, std::vector<std::string>& refused) {
  Flags flags(command, &refused);
  flags.group("Files");
  flags.texts("FILE", "PATH", values.files, "Configuration files of any dialect");
  flags.group("Checks");
  flags.text("--model-config", "FILE", values.model,
             "Model whose modules the files name: a file, or a name in configs/models", "that of the file");
  flags.text("--model-graph", "FILE", values.model_graph,
             "Recorded PyTorch model in place of the file's; of tools/record_model.py");
  flags.whole("--world-size", values.world_size, 1, "Ranks that sizes have to divide", "those that the file says");
  flags.text("--device", "PROFILE", values.device,
             "Device whose memory the planned step has to fit in: a file, or a name in configs/devices");
  flags.taken("--format", "{text,json,sarif}", "Form of the findings", [&values](const std::string& word) {
    values.format = job::read_choice("--format", word, {"text", "json", "sarif"});
  });
}

void add_explain(Command& command, ExplainArguments& values) {
  Flags flags(command);
  flags.group("Text");
  flags.text("TEXT", "TEXT|FILE", values.text,
             "Error text of a run, or a log with some of any rank; - is standard input");
  flags.text("--snapshot", "FILE", values.snapshot,
             "Memory snapshot of torch.cuda.memory, in place of a text: what is larger than planned, and why");
  flags.text("--trace", "FILE", values.trace,
             "Trace of torch.profiler, in place of a text: what takes longer than planned, and why");
  flags.text("--json", "FILE", values.json, "Write the explanation as JSON; - is standard output");
}

void add_config(Command& command, std::string& to, std::string& schema, std::vector<std::string>& refused) {
  Flags flags(command, &refused);
  flags.group("File");
  std::vector<std::string> dialects = {"flags"};
  for (const dialects::Dialect dialect : dialects::kDialects) dialects.emplace_back(word_of(dialect));
  flags.taken("--to", fmt::format("{{{}}}", fmt::join(dialects, ",")), "Write the job in this dialect",
              [&to, dialects](const std::string& word) { to = job::read_choice("--to", word, dialects); });
  flags.taken("--schema", "DIALECT", "Write the JSON Schema of a dialect's files; needs no FILE",
              [&schema, dialects](const std::string& word) { schema = job::read_choice("--schema", word, dialects); });
}

// The flags of training on one command.
class TrainingFlags final : public train::ExtraArguments {
 public:
  // `add_first`: flags of the command that the help shows before those of training.
  TrainingFlags(Command& app, Program program, const std::function<void(Flags&)>& add_first = {})
      : app_(app), program_(program), flags_(app, &refused_values_) {
    values_.kernels.fused = nn::KernelOptions::pytorch();  // settled by --kernels, which is known only later
    if (add_first) add_first(flags_);
    add_training(app, program, values_);
    flags_.group("Flags of this program", true);  // those added from outside
  }

  void group(const std::string& heading) override { flags_.group(heading, true); }
  void whole(const std::string& flag, std::int64_t& value, std::int64_t least, const std::string& about) override {
    make_room(flag);
    flags_.whole(flag, value, least, about);
    added_.emplace_back(flag, [&value] { return fmt::to_string(value); });
  }
  void real(const std::string& flag, double& value, const std::string& about) override {
    make_room(flag);
    flags_.real(flag, value, finite, "a number", about);
    added_.emplace_back(flag, [&value] { return fmt::to_string(value); });
  }
  void text(const std::string& flag, std::string& value, const std::string& about) override {
    make_room(flag);
    flags_.text(flag, "TEXT", value, about, value);
    added_.emplace_back(flag, [&value] { return value; });
  }
  void toggle(const std::string& flag, bool& value, const std::string& about) override {
    make_room(flag);
    flags_.toggle(flag, value, about);
    added_.emplace_back(flag, [&value] { return fmt::to_string(value); });
  }
  void example(const std::string& flags) override {
    app_.set_footer(fmt::format("Example:\n  {} {}\n", app_.name(), flags));
  }

  // Of a plan; 0: not given. Then --nnodes machines of --nproc-per-node ranks.
  void set_world(int size) {
    if (!refused_values_.empty()) return;
    const auto machines = job::foreign_value(values_.written, "--nnodes");
    const auto nodes = parse_number<int>(machines.value_or("1"));
    if (nodes && *nodes > 0 && *nodes < 1'000'000) {
      std::erase_if(values_.written.foreign,
                    [](const auto& flag) { return flag.first == "--nnodes" || flag.first == "--node-rank"; });
      if (size == 0 && *nodes > 1) size = *nodes * std::min(values_.launch.ranks, 1'000);
    }
    if (size == 0) return;
    check_world(app_, size);
    values_.launch.ranks = size;
  }
  // The file that flags of the command line came from.
  void set_file(const std::optional<dialects::Translation>& file) {
    if (!file) return;
    if (file->config) values_.parallel.fsdp2_config = std::make_shared<const sharding::Fsdp2Config>(*file->config);
    values_.written.told = dialects::told_of(*file);
  }
  void set_command_line(std::vector<std::string> words) { values_.report.command_line = std::move(words); }

  // After the parse. ConfigError with all that is not taken.
  job::Job settled(const launch::Start& start) {
    settle_mm_model(app_, values_);
    settle_mm_tool(app_, values_);
    settle_shape(values_, is_users(program_));
    settle_distributed_optimizer(values_, is_users(program_));
    settle_replicas(values_, values_.launch.ranks > 1 || start.ranks_are_processes() || start.first_runs_all());
    std::vector<std::string> parsed = unknown_flags(app_);
    for (const auto& lines :
         {refused_values_, refused_distributed_optimizer(values_), job::refused_foreign(values_.written)}) {
      parsed.insert(parsed.end(), lines.begin(), lines.end());
    }
    if (parsed.empty()) refuse_stray_words(app_);
    Refusals refusals(std::move(parsed));
    if (!is_users(program_)) refusals.of([&] { check_sources(values_, program_); });
    settle(app_, program_, start, values_, refusals);
    for (const auto& [flag, value] : added_) values_.written.added_flags.emplace_back(flag, value());
    return values_;
  }

 private:
  // A program's own flag has a meaning, even where launch scripts have one of that name.
  void make_room(const std::string& flag) {
    app_.remove_hidden(flag);
    if (!app_.has(flag)) return;
    const bool own = std::ranges::find(added_, flag, [](const auto& added) { return added.first; }) != added_.end();
    config_error("extra_args_provider adds {}, {}; choose another name", flag,
                 own ? "which it has added already" : "which is a flag of training already");
  }

  Command& app_;
  const Program program_;
  std::vector<std::string> refused_values_;
  Flags flags_;
  job::Job values_;
  std::vector<std::pair<std::string, std::function<std::string()>>> added_;  // read after the parse
};

// The program's parser.
class Parser {
 public:
  Parser() {
    app_.set_footer(fmt::format("{}{}{}", kProgramExample, talk_ ? kTalkExample : "", kProgramHelp));
    train_.set_footer(kTrainExample);
    plan_.set_footer(kPlanExample);
    compare_.set_footer(kCompareExample);
    explain_.set_footer(kExplainExample);
    calibrate_.set_footer(kCalibrateExample);
    completion_.set_footer(kCompletionExample);
    config_.set_footer(kConfigExample);
    lint_.set_footer(kLintExample);
    adapt_.set_footer(kAdaptExample);
    app_.set_version(fmt::format("shardloom {}", shardloom_version()), "Print the version and end");
    Flags compare(compare_, &refused_values_);
    add_compare(compare, compare_values_);
    add_explain(explain_, explain_values_);
    Flags calibrate(calibrate_, &refused_values_);
    add_calibrate(calibrate, calibrate_values_);
    add_config(config_, config_to_, config_schema_, refused_values_);
    add_lint(lint_, lint_values_, refused_values_);
    Flags adapt(adapt_, &refused_values_);
    adapt.group("Script");
    adapt.text("SCRIPT", "PATH", adapt_values_.script, "Launch script of torchrun, msrun or accelerate");
    Flags completion(completion_);
    completion.group("Shell");
    completion.text("SHELL", "{bash,zsh,fish}", shell_, "The shell that the script is for");
  }

  ParsedCommand run(int argc, const char* const* argv, const launch::Start& start, const dialects::Models& models) {
    std::vector<std::string> given{argv + 1, argv + argc};
    if (LauncherWords::are_of_launcher(given)) return launcher_.settled(given);
    for (const OptionalWords* optional : optional_words()) given = optional->written_out(std::move(given));
    if (!given.empty() && given.front() == "config") return settled_config({given.begin() + 1, given.end()});
    const std::vector<std::string> words = with_file_words(given, start, models);
    if (auto help = parse_words(app_, known_words(words, apps()))) return *help;
    if (!app_.remaining().empty() || app_.chosen() == nullptr) refuse_command(app_, app_.remaining());
    const Command& chosen = *app_.chosen();
    for (OptionalWords* optional : optional_words()) {
      if (auto arguments = optional->settled(chosen, start)) return *arguments;
    }
    training_.set_command_line(given);
    planning_.set_command_line(given);
    if (&chosen == &train_) return training_.settled(start);
    if (&chosen == &plan_) return settled_plan();
    if (&chosen == &completion_) {
      refuse_extras(completion_, {});
      return EarlyExit{0, completion_script(shell_, app_)};
    }
    refuse_extras(chosen, refused_values_);
    if (&chosen == &lint_) return lint_values_;
    if (&chosen == &calibrate_) {
      check(calibrate_values_);
      return calibrate_values_;
    }
    if (&chosen == &adapt_) {
      if (adapt_values_.script.empty()) config_error("no script is given; use shardloom adapt SCRIPT");
      return adapt_values_;
    }
    check(compare_values_);
    return compare_values_;
  }

 private:
  // Those of this build.
  std::vector<OptionalWords*> optional_words() const {
    std::vector<OptionalWords*> present{talk_.get(), text_.get(), multimodal_.get(), conversions_.get()};
    std::erase(present, nullptr);
    return present;
  }

  // Those of train and plan with the flags of a configuration file among them.
  std::vector<std::string> with_file_words(const std::vector<std::string>& given, const launch::Start& start,
                                           const dialects::Models& models) {
    if (given.empty() || (given.front() != "train" && given.front() != "plan")) return given;
    const bool planned = given.front() == "plan";
    FileWords file = with_file({given.begin() + 1, given.end()},
                               planned ? Program::kShardloomPlan : Program::kShardloomTrain, start, models);
    (planned ? planning_ : training_).set_file(file.translation);
    file.words.insert(file.words.begin(), given.front());
    return std::move(file.words);
  }

  ParsedCommand settled_config(std::vector<std::string> words) {
    ConfigArguments values;
    const auto takes_value = [](const std::string& word) { return word == "--to" || word == "--schema"; };
    const auto is_own = [&](const std::string& word) {
      return takes_value(word) || word.starts_with("--to=") || word.starts_with("--schema=") || word == "--help" ||
             word == "-h";
    };
    std::vector<std::string> own = {"config"};
    for (std::size_t i = 0; i < words.size(); ++i) {
      if (!is_own(words[i])) {
        values.words.push_back(words[i]);
        continue;
      }
      own.push_back(words[i]);
      if (takes_value(words[i]) && i + 1 < words.size()) own.push_back(words[++i]);
    }
    if (auto help = parse_words(app_, own)) return *help;
    refuse_extras(config_, refused_values_);
    values.to = config_to_;
    values.schema = config_schema_;
    return values;
  }

  Apps apps() const {
    Apps apps{&train_, &plan_, &compare_, &calibrate_};
    for (const OptionalWords* optional : optional_words()) {
      for (const Command* app : optional->apps()) apps.push_back(app);
    }
    return apps;
  }

  PlanArguments settled_plan() {
    planning_.set_world(world_size_);
    plan_values_.train = planning_.settled({.cores = 1});
    settle_search(plan_, plan_values_);
    return plan_values_;
  }

  // In the order of the help.
  Command app_{"Shardloom: train sharded models and see what the sharding does.", "shardloom"};
  Command& train_ = app_.add_command("train", "Train a model on one or more ranks.");
  Command& plan_ = app_.add_command("plan", "Predict memory and time of a training step on any number of devices.");
  const std::unique_ptr<OptionalWords> talk_ = talk_words(app_);
  const std::unique_ptr<OptionalWords> text_ = text_words(app_);
  const std::unique_ptr<OptionalWords> multimodal_ = multimodal_words(app_);
  Command& compare_ = app_.add_command("compare", "Compare loss and gradient norm of two runs, step by step.");
  Command& explain_ =
      app_.add_command("explain", "Explain an out-of-memory or a hang: which group, phase, allocation; what fits.");
  Command& calibrate_ = app_.add_command("calibrate", "Fit the figures of a device profile to measured kernels.");
  const std::unique_ptr<OptionalWords> conversions_ = convert_words(app_);
  Command& config_ =
      app_.add_command("config", "Show what a configuration file of any dialect says, or write another.");
  Command& lint_ = app_.add_command("lint", "Check configuration files of any dialect without training.");
  Command& adapt_ = app_.add_command("adapt", "Rewrite a launch script of another tool to start shardloom train.");
  LauncherWords launcher_{app_};
  Command& completion_ = app_.add_command("completion", "Print a script that completes these commands in a shell.");
  std::string shell_;
  std::string config_to_;
  std::string config_schema_;
  LintArguments lint_values_;
  AdaptArguments adapt_values_;
  TrainingFlags training_{train_, Program::kShardloomTrain};
  PlanArguments plan_values_;
  int world_size_ = 0;  // 0: not given
  TrainingFlags planning_{plan_, Program::kShardloomPlan,
                          [this](Flags& flags) { add_plan(flags, plan_values_, world_size_); }};
  std::vector<std::string> refused_values_;  // of compare, calibrate, lint, adapt and config
  CompareArguments compare_values_;
  ExplainArguments explain_values_;  // of the help alone
  CalibrateArguments calibrate_values_;
};

}  // namespace

namespace {

// The plans of two command lines as one command; help, where the words ask for it. `parse` gets argv without its first.
template <class Parsed, class Parse>
std::optional<Parsed> parse_compared(const std::vector<std::string>& words, Parse parse) {
  const auto compared = compared_words(words);
  if (!compared) return std::nullopt;
  PlanArguments both;
  for (const std::vector<std::string>& one : compared->words) {
    Parsed parsed = parse(one);
    auto* plan = std::get_if<PlanArguments>(&parsed);
    if (plan == nullptr) return parsed;
    both.compared.push_back(std::move(*plan));
  }
  both.compare.assign(compared->files.begin(), compared->files.end());
  both.json = both.compared.front().json;
  return both;
}

// `parse` gets argv without its first, of the job's plan.
template <class Parse>
std::optional<ParsedCommand> parse_explained(const std::vector<std::string>& words, Parse parse) {
  const auto explained = explained_words(words);
  if (!explained) return std::nullopt;
  ExplainArguments arguments{.text = explained->text,
                             .job = {},
                             .snapshot = explained->snapshot,
                             .trace = explained->trace,
                             .json = explained->json};
  if (explained->plan.empty()) return arguments;
  ParsedCommand parsed = parse(explained->plan);
  arguments.job = std::get<PlanArguments>(std::move(parsed));
  return arguments;
}

// As a program gets them.
std::vector<const char*> argv_of(const char* program, const std::vector<std::string>& words) {
  std::vector<const char*> argv{program};
  for (const std::string& word : words) argv.push_back(word.c_str());
  return argv;
}

}  // namespace

ParsedCommand parse_arguments(int argc, const char* const* argv, const launch::Start& start,
                              const dialects::Models& models) {
  const auto parse = [&](const std::vector<std::string>& words) {
    const std::vector<const char*> one = argv_of(argv[0], words);
    return Parser().run(static_cast<int>(one.size()), one.data(), start, models);
  };
  if (auto both = parse_compared<ParsedCommand>({argv + 1, argv + argc}, parse)) return std::move(*both);
  if (auto explained = parse_explained({argv + 1, argv + argc}, parse)) return std::move(*explained);
  return Parser().run(argc, argv, start, models);
}

namespace {

// The parser of a pretrain program's command line: training flags, or behind the word `plan` those of a plan too.
class ProgramParser {
 public:
  ProgramParser(const std::string& name, bool plan)
      : app_(plan ? "Predicts memory and time of a training step on any number of devices."
                  : "Trains a model on one or more ranks; with `plan` as the first word, predicts a step instead.",
             plan ? name + " plan" : name),
        program_(plan ? Program::kUsersPlan : Program::kUsersTrain),
        training_(app_, program_, [&](Flags& flags) {
          if (plan) add_plan(flags, plan_values_, world_size_);
        }) {
    app_.set_version(fmt::format("{} on Shardloom {}", name, shardloom_version()),
                     "Print the version of Shardloom and end");
    training_.example("--nproc-per-node 2 --use-torch-fsdp2 --fsdp2-config-path fsdp2_config.yaml --train-iters 20");
  }

  train::ExtraArguments& extra() { return training_; }

  std::optional<EarlyExit> parse(int argc, const char* const* argv, const launch::Start& start,
                                 const dialects::Models& models) {
    const FileWords file = with_file({argv + 1, argv + argc}, program_, start, models);
    training_.set_file(file.translation);
    if (auto help = parse_words(app_, known_words(file.words, {&app_}))) return help;
    training_.set_command_line({argv + 1, argv + argc});
    return std::nullopt;
  }

  job::Job settled(const launch::Start& start) { return training_.settled(start); }
  PlanArguments settled_plan() {
    training_.set_world(world_size_);
    plan_values_.train = training_.settled({.cores = 1});
    settle_search(app_, plan_values_);
    return plan_values_;
  }

 private:
  Command app_;
  const Program program_;
  PlanArguments plan_values_;
  int world_size_ = 0;  // 0: not given
  TrainingFlags training_;
};

}  // namespace

namespace {

ParsedProgram parse_one_program(int argc, const char* const* argv,
                                const std::function<void(train::ExtraArguments&)>& extra, const launch::Start& start,
                                const dialects::Models& models) {
  const std::string_view first = argc > 1 ? argv[1] : "";
  const bool plan = first == "plan";
  const std::filesystem::path program = argv[0];
  ProgramParser parser(program.filename().string(), plan);
  try {
    if (extra) extra(parser.extra());
  } catch (const std::invalid_argument& error) {
    config_error("extra_args_provider: {}; name a flag '--' and a word, such as --config", shown_text(error.what()));
  }
  if (auto help = parser.parse(plan ? argc - 1 : argc, plan ? argv + 1 : argv, start, models)) return *help;
  if (plan) return parser.settled_plan();
  return parser.settled(start);
}

}  // namespace

ParsedProgram parse_program_arguments(int argc, const char* const* argv,
                                      const std::function<void(train::ExtraArguments&)>& extra,
                                      const launch::Start& start, const dialects::Models& models) {
  const auto parse = [&](const std::vector<std::string>& words) {
    const std::vector<const char*> one = argv_of(argv[0], words);
    return parse_one_program(static_cast<int>(one.size()), one.data(), extra, start, models);
  };
  if (auto both = parse_compared<ParsedProgram>({argv + 1, argv + argc}, parse)) return std::move(*both);
  return parse_one_program(argc, argv, extra, start, models);
}

}  // namespace loom::cli
