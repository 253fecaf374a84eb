#include "engine/cli/arguments.h"

#include "engine/cli/argument_rules.h"
#include "engine/cli/command_words.h"
#include "engine/cli/convert_flags.h"
#include "engine/cli/flags.h"
#include "engine/cli/foreign_flags.h"
#include "engine/cli/generation_flags.h"
#include "engine/cli/host_optimizer_flags.h"
#include "engine/cli/preprocess_flags.h"
#include "engine/cli/training_flags.h"

namespace loom::cli {
namespace {

bool finite(double) { return true; }

constexpr const char* kProgramExample =
    "Example:\n"
    "  shardloom train --model-config quickstart --data-path corpus.txt --train-iters 20 --save out\n"
    "  shardloom generate out --prompt \"template <class T>\"\n"
    "Flags of a command: shardloom train --help, and so for the others\n"
    "Exit status: 0 done, 1 a run failed or lost an output, or compared runs differ, 2 the command line or a file is "
    "wrong, 3 a plan does not fit, "
    "130 or 143 stopped by SIGINT or SIGTERM\n";
constexpr const char* kTrainExample =
    "Example:\n  shardloom train --model-config quickstart --data-path corpus.txt --nproc-per-node 2 \\\n"
    "    --use-torch-fsdp2 --fsdp2-config-path quickstart --train-iters 200 --save out\n";
constexpr const char* kPlanExample =
    "Example:\n  shardloom plan --model-config llama3_8b --use-torch-fsdp2 \\\n"
    "    --fsdp2-config-path full_shard --world-size 64 --device h200 --seq-length 8192\n";
constexpr const char* kGenerateExample =
    "Example:\n  shardloom generate out --prompt \"Once upon a time\" --max-new-tokens 40\n";
constexpr const char* kChatExample =
    "Example:\n  shardloom chat tuned --system \"You answer in one sentence.\"\n"
    "  shardloom chat tuned < questions.txt > answers.txt\n"
    "In the chat: /clear, /save FILE, /help, /exit\n";
constexpr const char* kCompareExample =
    "Example:\n  shardloom compare out_a out_b --tolerance 1e-5\n"
    "Exit status: 0 the runs are the same in all steps in common, 1 they differ, 2 the command line or a file is "
    "wrong\n";
constexpr const char* kConvertExample =
    "Flags of a conversion: shardloom convert hf-to-dcp --help, and so for the others\n"
    "Also as: shardloom mm-convert GenericDCPConverter hf_to_dcp --hf_dir DIR --dcp_dir DIR\n"
    "         shardloom convert_ckpt_v2 --load-model-type hf --save-model-type mg --load-dir DIR --save-dir DIR\n";
constexpr const char* kMergeExample = "Example:\n  shardloom merge --base qwen2 --adapter tuned --save qwen2-tuned\n";
constexpr const char* kInspectExample =
    "Example:\n  shardloom inspect run\n  shardloom inspect --diff run/iter_0000100 hf_folder\n"
    "Exit status: 0 whole, or equal with --diff; 1 something is damaged, or different; 2 the command line is wrong\n";
constexpr const char* kPreprocessExample =
    "Example:\n  shardloom preprocess --input corpus.jsonl --tokenizer-name-or-path qwen2 --append-eod \\\n"
    "    --output-prefix data/corpus --workers 4\n  shardloom preprocess alpaca_sft --input alpaca.jsonl\n"
    "Flags may stand in a YAML file, their names with underscores: a path, or the name of a file in configs/datasets, "
    "as "
    "the first word\n"
    "preprocess_data is the same command\n";

// The flags of training on one command.
class TrainingFlags final : public train::ExtraArguments {
 public:
  TrainingFlags(CLI::App& app, Program program) : app_(app), program_(program), flags_(app) {
    values_.fused = nn::KernelOptions::pytorch();  // settled by --kernels, which is known only later
    add_training(flags_, program, values_);
    add_foreign_flags(flags_, foreign_);
    flags_.group("Flags of this program");  // those added from outside
  }

  void group(const std::string& heading) override { flags_.group(heading); }
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
    app_.footer(fmt::format("Example:\n  {} {}\n", app_.get_name(), flags));
  }

  // Flags of the command beside those of training.
  Flags& flags() { return flags_; }
  // 0: not given.
  void set_world(int size) {
    if (size == 0) return;
    check_world(app_, size);
    values_.ranks = size;
  }
  void set_command_line(std::vector<std::string> words) { values_.command_line = std::move(words); }

  // What the parse gave that is not taken here.
  std::vector<std::string> refused() const {
    std::vector<std::string> texts = refused_distributed_optimizer(foreign_, values_);
    texts.insert(texts.end(), foreign_.refused.begin(), foreign_.refused.end());
    return texts;
  }

  // After the parse.
  ProgramArguments settled(const launch::LaunchContext& context) {
    if (!is_users(program_)) check_sources(values_, program_);
    settle(app_, program_, context, foreign_, values_);
    for (const auto& [flag, value] : added_) values_.added_flags.emplace_back(flag, value());
    return values_;
  }

 private:
  // A program's own flag has a meaning, even where launch scripts have one of that name.
  void make_room(const std::string& flag) {
    CLI::Option* foreign = app_.get_option_no_throw(flag);
    if (foreign != nullptr && foreign->get_group().empty()) app_.remove_option(foreign);
  }

  CLI::App& app_;
  const Program program_;
  Flags flags_;
  ProgramArguments values_;
  ForeignFlags foreign_;
  std::vector<std::pair<std::string, std::function<std::string()>>> added_;  // read after the parse
};
constexpr std::size_t kHelpColumn = 46;  // where a flag's description begins

// The program's parser; subcommands write into the two structs.
class Parser {
 public:
  Parser() {
    app_.get_formatter()->column_width(kHelpColumn);
    app_.footer(kProgramExample);
    train_.footer(kTrainExample);
    generate_.footer(kGenerateExample);
    chat_.footer(kChatExample);
    plan_.footer(kPlanExample);
    compare_.footer(kCompareExample);
    convert_.footer(kConvertExample);
    inspect_.footer(kInspectExample);
    preprocess_.footer(kPreprocessExample);
    merge_.footer(kMergeExample);
    for (CLI::App* app :
         {&app_, &train_, &plan_, &generate_, &chat_, &preprocess_, &compare_, &convert_, &inspect_, &merge_}) {
      app->allow_extras();
    }
    app_.set_version_flag("--version", fmt::format("shardloom {}", LOOM_VERSION), "Print the version and end");
    add_plan(planning_.flags(), plan_values_, world_size_);
    Flags generate(generate_);
    add_generate(generate, generate_values_);
    Flags chat(chat_);
    add_chat(chat, chat_values_);
    Flags compare(compare_);
    add_compare(compare, compare_values_);
    add_inspect(inspect_, inspect_values_);
    add_merge(merge_, merge_values_);
  }

  ParsedCommand run(int argc, const char* const* argv, const launch::LaunchContext& context) {
    const std::vector<std::string> words =
        preprocessing_.written_out(conversions_.written_out({argv + 1, argv + argc}));
    if (auto help = parse_words(app_, reversed_words(words, apps()))) return *help;
    if (!app_.remaining().empty() || app_.get_subcommands().empty()) refuse_command(app_.remaining());
    const CLI::App& chosen = *app_.get_subcommands().front();
    if (&chosen == &convert_) return settled_conversion();
    if (&chosen == &preprocess_) {
      refuse_extras(preprocess_, preprocessing_.refused());
      return preprocessing_.settled();
    }
    refuse_extras(chosen, &chosen == &plan_ ? planning_.refused() : training_.refused());
    if (&chosen == &inspect_) {
      check(inspect_values_);
      return inspect_values_;
    }
    if (&chosen == &merge_) {
      check(merge_values_);
      return merge_values_;
    }
    training_.set_command_line(words);
    planning_.set_command_line(words);
    if (&chosen == &train_) return training_.settled(context);
    if (&chosen == &plan_) return settled_plan();
    if (&chosen == &compare_) {
      check(compare_values_);
      return compare_values_;
    }
    if (&chosen == &chat_) {
      settle(chat_, context, chat_values_);
      return chat_values_;
    }
    settle(generate_, context, generate_values_);
    return generate_values_;
  }

 private:
  Apps apps() const {
    Apps apps{&train_, &plan_, &generate_, &chat_, &preprocess_, &compare_, &inspect_, &merge_};
    for (const CLI::App* app : conversions_.apps()) apps.push_back(app);
    return apps;
  }

  ConvertArguments settled_conversion() {
    for (const CLI::App* app : conversions_.apps()) {
      refuse_extras(*app, app->parsed() ? conversions_.refused() : std::vector<std::string>{});
    }
    refuse_extras(convert_, {});
    return conversions_.settled();
  }

  PlanArguments settled_plan() {
    planning_.set_world(world_size_);
    plan_values_.train = planning_.settled({.cores = 1});
    settle_search(plan_, plan_values_);
    return plan_values_;
  }

  CLI::App app_{"Shardloom: train sharded models and see what the sharding does.", "shardloom"};
  CLI::App& train_ = *app_.add_subcommand("train", "Train a model on one or more ranks.");
  CLI::App& plan_ =
      *app_.add_subcommand("plan", "Predict memory and time of a training step on any number of devices.");
  CLI::App& generate_ = *app_.add_subcommand("generate", "Continue a text with a trained model.");
  CLI::App& chat_ = *app_.add_subcommand("chat", "Talk with a model: each line is a turn that it answers.");
  CLI::App& preprocess_ = *app_.add_subcommand("preprocess", "Make token ids of files of texts or conversations.");
  CLI::App& compare_ = *app_.add_subcommand("compare", "Compare loss and gradient norm of two runs, step by step.");
  CLI::App& convert_ = *app_.add_subcommand("convert", "Convert weights between Hugging Face folders and checkpoints.");
  CLI::App& inspect_ = *app_.add_subcommand("inspect", "Show what a checkpoint holds and whether it is whole.");
  CLI::App& merge_ = *app_.add_subcommand("merge", "Add adapters to the weights of the model they were trained on.");
  ConvertFlags conversions_{convert_};
  PreprocessFlags preprocessing_{preprocess_};
  MergeArguments merge_values_;
  InspectArguments inspect_values_;
  TrainingFlags training_{train_, Program::kShardloomTrain};
  TrainingFlags planning_{plan_, Program::kShardloomPlan};
  PlanArguments plan_values_;
  int world_size_ = 0;  // 0: not given
  GenerateArguments generate_values_;
  ChatArguments chat_values_;
  CompareArguments compare_values_;
};

}  // namespace

ParsedCommand parse_arguments(int argc, const char* const* argv, const launch::LaunchContext& context) {
  return Parser().run(argc, argv, context);
}

namespace {

// The parser of a pretrain program's command line: training flags, or behind the word `plan` those of a plan too.
class ProgramParser {
 public:
  ProgramParser(const std::string& name, bool plan)
      : app_(plan ? "Predicts memory and time of a training step on any number of devices."
                  : "Trains a model on one or more ranks; with `plan` as the first word, predicts a step instead.",
             plan ? name + " plan" : name),
        training_(app_, plan ? Program::kUsersPlan : Program::kUsersTrain) {
    app_.get_formatter()->column_width(kHelpColumn);
    app_.allow_extras();
    app_.set_version_flag("--version", fmt::format("{} on Shardloom {}", name, LOOM_VERSION),
                          "Print the version of Shardloom and end");
    training_.example("--nproc-per-node 2 --use-torch-fsdp2 --fsdp2-config-path fsdp2_config.yaml --train-iters 20");
    if (plan) add_plan(training_.flags(), plan_values_, world_size_);
  }

  train::ExtraArguments& extra() { return training_; }

  std::optional<EarlyExit> parse(int argc, const char* const* argv) {
    if (auto help = parse_words(app_, reversed_words({argv + 1, argv + argc}, {&app_}))) return help;
    refuse_extras(app_, training_.refused());
    training_.set_command_line({argv + 1, argv + argc});
    return std::nullopt;
  }

  ProgramArguments settled(const launch::LaunchContext& context) { return training_.settled(context); }
  PlanArguments settled_plan() {
    training_.set_world(world_size_);
    plan_values_.train = training_.settled({.cores = 1});
    settle_search(app_, plan_values_);
    return plan_values_;
  }

 private:
  CLI::App app_;
  TrainingFlags training_;
  PlanArguments plan_values_;
  int world_size_ = 0;  // 0: not given
};

}  // namespace

ParsedProgram parse_program_arguments(int argc, const char* const* argv,
                                      const std::function<void(train::ExtraArguments&)>& extra,
                                      const launch::LaunchContext& context) {
  const std::string_view first = argc > 1 ? argv[1] : "";
  const bool plan = first == "plan";
  const std::filesystem::path program = argv[0];
  ProgramParser parser(program.filename().string(), plan);
  if (extra) extra(parser.extra());
  if (auto help = parser.parse(plan ? argc - 1 : argc, plan ? argv + 1 : argv)) return *help;
  if (plan) return parser.settled_plan();
  return parser.settled(context);
}

}  // namespace loom::cli
