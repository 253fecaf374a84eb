#include "engine/cli/words/launcher_words.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <fmt/format.h>
#include <map>
#include <utility>

#include "engine/cli/words/command_words.h"
#include "engine/cli/words/msrun_flags.h"
#include "engine/cli/words/torchrun_flags.h"
#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/core/version.h"
#include "engine/launcher/program.h"

namespace loom::cli {
namespace {

using Words = std::vector<std::string>;

constexpr const char* kTorchrunExample =
    "PROGRAM: a command of shardloom, an executable file, or a Python script. Every flag may come from\n"
    "the environment: PET_NNODES, PET_NPROC_PER_NODE, ...\n"
    "Example:\n  shardloom torchrun --nnodes 2 --node-rank 0 --master-addr node0 --nproc-per-node 4 train ...\n"
    "Exit status: 0 all workers ended with 0; 1 a worker or a node failed; 2 the command line is wrong;\n"
    "  128 + signal stopped by a signal\n";
constexpr const char* kMsrunExample =
    "Example:\n  shardloom msrun --worker_num 8 --local_worker_num 4 --master_addr node0 --node_rank 0 \\\n"
    "    --join True train ...\n"
    "Exit status: as of torchrun; with --join False 0 when this node's part has begun\n";

// A script's "--rank_table_file $TABLE" without a table.
constexpr std::string_view kMayBeEmpty = "--rank-table-file";

struct Split {
  Words own;      // flags, each with its value: "--nnodes=2"
  Words program;  // the first word that is no flag, and all behind it
};

const std::map<std::string, std::string>& long_names() {
  static const std::map<std::string, std::string> names{{"-r", "--redirects"}, {"-t", "--tee"}, {"-m", "--module"}};
  return names;
}

// A flag's name with dashes, and its long one; "-r3" has its value in the same word.
std::pair<std::string, std::optional<std::string>> read_flag(const std::string& word) {
  if (!word.starts_with("--")) {
    const auto name = long_names().find(word.substr(0, 2));
    if (name == long_names().end()) return {word, std::nullopt};
    if (word.size() == 2) return {name->second, std::nullopt};
    return {name->second, word.substr(word[2] == '=' ? 3 : 2)};
  }
  const std::size_t equals = word.find('=');
  std::string name = word.substr(0, equals);
  std::ranges::replace(name, '_', '-');
  if (equals == std::string::npos) return {name, std::nullopt};
  return {name, word.substr(equals + 1)};
}

Split split(const Command& command, const Words& words) {
  Split parts;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i] == "--" || !words[i].starts_with('-') || words[i] == "-") {
      const std::size_t first = words[i] == "--" ? i + 1 : i;
      parts.program.assign(words.begin() + static_cast<std::ptrdiff_t>(first), words.end());
      break;
    }
    auto [name, value] = read_flag(words[i]);
    if (!value && command.most_values(name) > 0 && i + 1 < words.size()) value = words[++i];
    if (value && value->empty() && name == kMayBeEmpty) continue;
    if (value && value->empty()) config_error("{} has an empty value; give one, or leave the flag out", name);
    parts.own.push_back(value ? fmt::format("{}={}", name, *value) : name);
  }
  return parts;
}

std::string name_in(const std::string& word) { return word.substr(0, word.find('=')); }

// --nnodes is PET_NNODES.
std::string variable_of(const std::string& flag) {
  std::string name = "PET_";
  for (const char c : flag.substr(2)) {
    name += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return name;
}

// The flags of the environment that `own` does not give.
Words from_environment(const Command& command, const Words& own) {
  Words words;
  for (const SeenFlag& flag : command.flags()) {
    if (flag.long_names.empty() || flag.name == "--help") continue;
    const std::string name = "--" + flag.long_names.front();
    const char* const value = std::getenv(variable_of(name).c_str());
    if (value == nullptr || *value == '\0' || std::ranges::find(own, name, name_in) != own.end()) continue;
    if (flag.most > 0) {
      words.push_back(fmt::format("{}={}", name, value));
      continue;
    }
    const std::string_view text = value;
    if (text == "1") words.push_back(name);
    if (text != "0" && text != "1") {
      config_error("{} is {} in the environment; use 0 or 1", variable_of(name), shown_text(text));
    }
  }
  return words;
}

// The message of a refusal, with the variable that gave the value.
std::string with_variable(const std::string& text, const Words& environment) {
  for (const std::string& word : environment) {
    const std::string name = name_in(word);
    if (text.starts_with(name + " ")) return fmt::format("{} ({} in the environment)", text, variable_of(name));
  }
  return text;
}

}  // namespace

struct LauncherWords::Values {
  TorchrunFlags torchrun;
  MsrunFlags msrun;
  std::vector<std::string> refused;
};

LauncherWords::LauncherWords(Command& app)
    : app_(app),
      torchrun_(app.add_command(
          "torchrun", "Start a program for each rank, on one or several hosts: torchrun FLAGS PROGRAM ARGS.")),
      msrun_(app.add_command("msrun", "Do the same with the flags of MindSpore's msrun: msrun FLAGS PROGRAM ARGS.")),
      values_(std::make_unique<Values>()) {
  torchrun_.set_footer(kTorchrunExample);
  msrun_.set_footer(kMsrunExample);
  Flags torchrun(torchrun_, &values_->refused);
  add_torchrun(torchrun, values_->torchrun);
  Flags msrun(msrun_, &values_->refused);
  add_msrun(msrun, values_->msrun);
}

LauncherWords::~LauncherWords() = default;

bool LauncherWords::are_of_launcher(const std::vector<std::string>& words) {
  return !words.empty() && (words.front() == "torchrun" || words.front() == "msrun");
}

ParsedCommand LauncherWords::settled(const std::vector<std::string>& words) {
  const bool by_torchrun = words.front() == "torchrun";
  const Command& command = by_torchrun ? torchrun_ : msrun_;
  const Split parts = split(command, {words.begin() + 1, words.end()});
  const Words environment = by_torchrun ? from_environment(command, parts.own) : Words{};
  Words own{words.front()};
  own.insert(own.end(), environment.begin(), environment.end());
  own.insert(own.end(), parts.own.begin(), parts.own.end());
  launcher::ProgramWords program{.words = parts.program, .tool = words.front()};
  for (const Command* other : app_.commands()) {
    if (other != &torchrun_ && other != &msrun_) program.commands.push_back(other->name());
  }
  try {
    if (auto help = parse_words(app_, own)) return *help;
    refuse_extras(command, values_->refused);
    LauncherArguments arguments;
    arguments.options = by_torchrun ? options_of(values_->torchrun) : options_of(values_->msrun);
    arguments.options.version = shardloom_version();
    arguments.background = !by_torchrun && !values_->msrun.join;
    if (by_torchrun) program.entry = entry_of(values_->torchrun);
    arguments.options.program = launcher::find_program(program);
    return arguments;
  } catch (const ConfigError& error) {
    throw ConfigError(with_variable(error.what(), environment));
  }
}

}  // namespace loom::cli
