// Promise: the scripts of `shardloom completion` complete commands, the flags that the help shows, the words of choices
//          and names of files, alike in bash, zsh and fish, in each way of switching them on.
// World:   the built program and the shells themselves: a line is typed into bash, and into zsh on a pseudo-terminal;
//          fish is asked with complete -C.
#include "engine/cli/words/completion.h"

#include <algorithm>
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "tests/support/program.h"

namespace loom::test {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::UnorderedElementsAre;
using ::testing::UnorderedElementsAreArray;

Words split(const std::string& text, char at) {
  Words parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, at);) parts.push_back(part);
  if (text.ends_with(at)) parts.emplace_back();
  return parts;
}

// --- Shells

// A shell runs in the folder `here`, and its start file is above it. $PROGRAM is the program, $SCRIPT its script.
struct Shell {
  std::string name;
  std::string start_file;
  std::string start;      // behind the lines that switch completion on
  std::string command;    // $1 is the line
  std::string sourced;    // switches completion on
  std::string piped;      // the same without a file
  std::string installed;  // the script's place where the shell finds it by itself
  std::string found;      // the lines that this needs
};

void PrintTo(const Shell& shell, std::ostream* out) { *out << shell.name; }

// Tab inserts all completions; the function notes the words that it is given.
const Shell kBash{
    .name = "bash",
    .start_file = "bashrc",
    .start = R"(
bind '"\C-i": insert-completions'
shardloom() { printf '%s\n' "$@" > ../seen; exit; }
)",
    .command = R"(printf '%s\t\n' "$1" | bash --rcfile ../bashrc -i)",
    .sourced = R"(. "$SCRIPT")",
    .piped = R"(. <("$PROGRAM" completion bash))",
    .installed = "",
    .found = "",
};
const Shell kZsh{
    .name = "zsh",
    .start_file = ".zshrc",
    .start = R"(
_all() { compstate[insert]=all; compstate[list]= }
_note() { comppostfuncs=(_all); return 1 }
zstyle ':completion:*' completer _note _complete
shardloom() { print -rl -- "$@" > ../seen; exit }
zle-line-init() { print ready }
zle -N zle-line-init
)",
    .command = R"(zsh -f -c 'zmodload zsh/zpty
zpty shell zsh -d -i
zpty -r shell shown "*ready*"
zpty -w shell "$1"
zpty -r shell shown "*never*"
print -r -- $shown' zsh "$1"$'\t')",
    .sourced = "autoload -Uz compinit && compinit -u\n. $SCRIPT",
    .piped = "autoload -Uz compinit && compinit -u\n. <($PROGRAM completion zsh)",
    .installed = "functions/_shardloom",
    .found = "fpath=(~/functions $fpath)\nautoload -Uz compinit && compinit -u",
};
const Shell kFish{
    .name = "fish",
    .start_file = ".config/fish/config.fish",
    .start = "",
    .command = R"(fish -c 'complete -C $argv[1]' -- "$1" > ../seen)",
    .sourced = "source $SCRIPT",
    .piped = "$PROGRAM completion fish | source",
    .installed = ".config/fish/completions/shardloom.fish",
    .found = "",
};

const std::vector<Shell> kShells{kBash, kZsh, kFish};

// The words that may stand in the place of the line's last word. Behind "--flag=" they are values.
Words replies_in(const std::string& seen, const std::string& line, bool is_list) {
  const Words typed = split(line, ' ');
  const std::size_t value_at = typed.back().starts_with("--") ? typed.back().find('=') + 1 : 0;
  const std::string given = typed.back().substr(0, value_at);
  Words replies;
  for (const std::string& row : split(seen, '\n')) {
    const std::string word = row.substr(0, row.find('\t'));  // fish writes descriptions behind it
    if (!word.empty()) replies.push_back(word.substr(word.starts_with(given) ? given.size() : 0));
  }
  if (!is_list) replies.erase(replies.begin(), replies.begin() + std::min(std::ssize(typed) - 2, std::ssize(replies)));
  const bool unchanged = replies == Words{typed.back().substr(value_at)};
  return unchanged ? Words{} : replies;
}

// A folder in which a shell runs, and files whose names it completes.
class Session {
 public:
  explicit Session(const Shell& shell, const std::string& script = {}) : shell_(shell) {
    folder_.write("here/a.yaml", "");
    folder_.write("here/b c.yaml", "");
    folder_.write("script", script.empty() ? folder_.run({"completion", shell.name}).out : script);
    switch_on(shell.sourced);
  }

  void switch_on(const std::string& lines) const { folder_.write(shell_.start_file, lines + shell_.start); }
  void install() const {
    folder_.write(shell_.installed, folder_.read("script"));
    switch_on(shell_.found);
  }

  Outcome run(const Words& arguments) const { return folder_.run(arguments); }
  std::string help(const std::string& command = {}) const {
    return run(split(command, ' ') + Words{"--help", "all"}).out;
  }

  Words replies(const std::string& line) const {
    const Outcome outcome = folder_.run_shell(
        R"(export HOME=$PWD ZDOTDIR=$PWD XDG_CONFIG_HOME=$PWD/.config XDG_DATA_HOME=$PWD/.local TERM=dumb
export SCRIPT=$PWD/script PROGRAM=$0 PATH=${0%/*}:$PATH
rm -f seen && cd here && )" +
            shell_.command,
        {line});
    EXPECT_TRUE(std::filesystem::exists(folder_.path("seen")) && outcome.exit_code == 0)
        << shell_.name << " (bash cmake/install_packages.sh test installs it): " << outcome.out << outcome.err;
    return replies_in(folder_.read("seen"), line, shell_.name == "fish");
  }

 private:
  const Shell shell_;
  const ProgramFolder folder_;
};

// --- What the help says

// "  --a,--no-a{false}  Text" has two.
Words flags_in(const std::string& help) {
  Words flags;
  for (const std::string& line : split(help, '\n')) {
    if (!line.starts_with("  -")) continue;
    for (const std::string& name : split(line.substr(2, line.find_first_of(" {", 2) - 2), ',')) {
      if (name.starts_with("--")) flags.push_back(name);
    }
  }
  return flags;
}

Words commands_in(const std::string& help) {
  Words commands;
  for (const std::string& line : split(help.substr(help.find("\nSubcommands:\n") + 14), '\n')) {
    if (!line.starts_with("  ")) break;
    if (line[2] == ' ') continue;  // the description goes on
    commands.push_back(line.substr(2, line.find(' ', 2) - 2));
  }
  return commands;
}

Words choices_in(const std::string& help, const std::string& flag) {
  const std::size_t begin = help.find('{', help.find("\n  " + flag + " "));
  return split(help.substr(begin + 1, help.find('}', begin) - begin - 1), ',');
}

Words beginning_with(const std::string& text, Words words) {
  std::erase_if(words, [&](const std::string& word) { return !word.starts_with(text); });
  return words;
}

// --- Tests

class Completion : public ::testing::TestWithParam<Shell> {};
INSTANTIATE_TEST_SUITE_P(Shells, Completion, ::testing::ValuesIn(kShells),
                         [](const auto& shell) { return shell.param.name; });

TEST_P(Completion, GivesTheCommandsOfTheHelp) {
  const Session session(GetParam());
  const Words commands = commands_in(session.help());
  EXPECT_THAT(commands, Contains("train"));
  EXPECT_THAT(session.replies("shardloom "), UnorderedElementsAreArray(commands));
  EXPECT_THAT(session.replies("shardloom tr"), ElementsAre("train"));
  EXPECT_THAT(session.replies("shardloom --v"), ElementsAre("--version"));
}

TEST_P(Completion, GivesTheConversionsOnceOnly) {
  const Session session(GetParam());
  const Words conversions = commands_in(session.help("convert"));
  EXPECT_THAT(conversions, Contains("hf-to-dcp"));
  EXPECT_THAT(session.replies("shardloom convert "), UnorderedElementsAreArray(conversions));
  EXPECT_THAT(session.replies("shardloom convert hf-to-dcp hf"), IsEmpty());
}

TEST_P(Completion, GivesTheFlagsThatTheHelpOfTheCommandShows) {
  const Session session(GetParam());
  Words commands = commands_in(session.help());
  for (const std::string& conversion : commands_in(session.help("convert")))
    commands.push_back("convert " + conversion);
  for (const std::string& command : commands) {
    EXPECT_THAT(session.replies("shardloom " + command + " --"),
                UnorderedElementsAreArray(flags_in(session.help(command))))
        << command;
  }
}

TEST_P(Completion, GivesTheFlagsThatBeginAsTheWordDoes) {
  const Session session(GetParam());
  const Words flags = beginning_with("--lr", flags_in(session.help("train")));
  EXPECT_THAT(flags, Contains("--lr-decay-style"));
  EXPECT_THAT(session.replies("shardloom train --lr"), UnorderedElementsAreArray(flags));
  EXPECT_THAT(session.replies("shardloom train --optimizer muon --lr 1 --lr"), UnorderedElementsAreArray(flags));
}

TEST_P(Completion, GivesNoFlagOfAnotherCommand) {
  const Session session(GetParam());
  EXPECT_THAT(session.replies("shardloom train --loa"), ElementsAre("--load"));
  EXPECT_THAT(session.replies("shardloom plan --loa"), IsEmpty());
  EXPECT_THAT(session.replies("shardloom plan --json train --loa"), IsEmpty());
  EXPECT_THAT(session.replies("shardloom merge --save convert --hf"), IsEmpty());
}

TEST_P(Completion, GivesNoFlagThatTheHelpHides) {
  const Session session(GetParam());
  const Outcome taken = session.run({"train", "--transformer-impl", "local", "--lr", "x"});
  EXPECT_THAT(taken.err, Not(HasSubstr("--transformer-impl")));  // it is a flag
  EXPECT_THAT(session.replies("shardloom train --transf"), IsEmpty());
}

TEST_P(Completion, GivesTheWordsOfAChoiceAndNothingElse) {
  const Session session(GetParam());
  const Words optimizers = choices_in(session.help("train"), "--optimizer");
  EXPECT_THAT(optimizers, Contains("muon"));
  EXPECT_THAT(session.replies("shardloom train --optimizer "), UnorderedElementsAreArray(optimizers));
  EXPECT_THAT(session.replies("shardloom train --optimizer mu"), ElementsAre("muon"));
  EXPECT_THAT(session.replies("shardloom train --optimizer a."), IsEmpty());  // not a.yaml
  EXPECT_THAT(session.replies("shardloom completion "), UnorderedElementsAre("bash", "zsh", "fish"));
}

TEST_P(Completion, GivesValuesBehindAnEqualsSign) {
  const Session session(GetParam());
  const Words optimizers = choices_in(session.help("train"), "--optimizer");
  EXPECT_THAT(session.replies("shardloom train --optimizer="), UnorderedElementsAreArray(optimizers));
  EXPECT_THAT(session.replies("shardloom train --optimizer=mu"), ElementsAre("muon"));
  EXPECT_THAT(session.replies("shardloom train --fsdp2-config-path="), UnorderedElementsAre("a.yaml", "b c.yaml"));
  EXPECT_THAT(session.replies("shardloom train --fsdp2-config-path=b"), ElementsAre("b c.yaml"));
  EXPECT_THAT(session.replies("shardloom train --optimizer=muon --optimizer mu"), ElementsAre("muon"));
  EXPECT_THAT(session.replies("shardloom train --optimizer=muon --fp1"), ElementsAre("--fp16"));
}

TEST(CompletionInBash, GivesValuesWhereAnEqualsSignBreaksNoWord) {
  const Session session(kBash);
  session.switch_on("COMP_WORDBREAKS=${COMP_WORDBREAKS//=}\n" + kBash.sourced);
  EXPECT_THAT(session.replies("shardloom train --optimizer=mu"), ElementsAre("muon"));
  EXPECT_THAT(session.replies("shardloom train --fsdp2-config-path=b"), ElementsAre("b c.yaml"));
  EXPECT_THAT(session.replies("shardloom train --optimizer=muon --fp1"), ElementsAre("--fp16"));
}

TEST_P(Completion, GivesNamesOfFilesForOtherValues) {
  const Session session(GetParam());
  const auto files = UnorderedElementsAre("a.yaml", "b c.yaml");
  EXPECT_THAT(session.replies("shardloom train --fsdp2-config-path "), files);
  EXPECT_THAT(session.replies("shardloom train --fsdp2-config-path b"), ElementsAre("b c.yaml"));
  EXPECT_THAT(session.replies("shardloom plan --device "), files);
  EXPECT_THAT(session.replies("shardloom train --data-path a.yaml "), files);
  EXPECT_THAT(session.replies("shardloom generate "), files);
  EXPECT_THAT(session.replies("shardloom generate a"), ElementsAre("a.yaml"));
}

TEST_P(Completion, GivesFlagsBehindAListOfValues) {
  const Session session(GetParam());
  EXPECT_THAT(session.replies("shardloom train --data-path a.yaml --fp1"), ElementsAre("--fp16"));
}

TEST_P(Completion, IsSwitchedOnTwiceWithoutHarm) {
  const Session session(GetParam());
  const Words once = session.replies("shardloom train --optimizer ");
  session.switch_on(GetParam().sourced + "\n" + GetParam().sourced);
  EXPECT_THAT(session.replies("shardloom train --optimizer "), UnorderedElementsAreArray(once));
}

TEST_P(Completion, IsSwitchedOnWithoutAFile) {
  const Session session(GetParam());
  session.switch_on(GetParam().piped);
  EXPECT_THAT(session.replies("shardloom tr"), ElementsAre("train"));
}

// bash finds scripts by the package bash-completion, which reads them as a start file does.
TEST_P(Completion, IsFoundByTheShellWhereTheScriptIsInstalled) {
  if (GetParam().installed.empty()) return;
  const Session session(GetParam());
  session.install();
  EXPECT_THAT(session.replies("shardloom tr"), ElementsAre("train"));
}

TEST_P(Completion, TakesEveryCharacterOfAChoiceAsItIs) {
  const Words odd{"it's", "a b", "$HOME", "*", "`id`", "$(id)", "x;y", "back\\slash", "\"q\""};
  cli::Command root("About", "shardloom");
  cli::Command& command = root.add_command("try", "It's about \\ $HOME");
  command.add({.names = "--odd",
               .type = fmt::format("{{{}}}", fmt::join(odd, ",")),
               .about = "It's \"odd\" \\",
               .group = "Shown",
               .take = [](const Words&) {}});
  const Session session(GetParam(), cli::completion_script(GetParam().name, root));
  EXPECT_THAT(session.replies("shardloom try --odd "), UnorderedElementsAreArray(odd));
  EXPECT_THAT(session.replies("shardloom try --o"), ElementsAre("--odd"));
}

}  // namespace
}  // namespace loom::test
