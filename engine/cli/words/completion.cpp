#include "engine/cli/words/completion.h"

#include <algorithm>
#include <fmt/format.h>
#include <utility>
#include <vector>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/core/spelling.h"

namespace loom::cli {
namespace {

using Texts = std::vector<std::string>;

// --- What the commands have

// A command as a path of words: "train", "convert hf-to-dcp"; empty for the uppermost.
struct Level {
  std::string path;
  const Command* command;
};

void add_levels(const Command& command, const std::string& path, std::vector<Level>& levels) {
  levels.push_back({path, &command});
  for (const Command* below : command.commands()) {
    add_levels(*below, path.empty() ? below->name() : path + " " + below->name(), levels);
  }
}

std::vector<Level> levels_of(const Command& root) {
  std::vector<Level> levels;
  add_levels(root, "", levels);
  return levels;
}

bool has_name(const SeenFlag& flag) { return !flag.long_names.empty(); }

Texts shown_flags(const Command& command) {
  Texts flags;
  for (const SeenFlag& flag : command.flags()) {
    if (!flag.shown) continue;
    for (const std::string& name : flag.long_names) flags.push_back("--" + name);
  }
  return flags;
}

// The words of a flag's type "{a,b}"; empty for other types.
Texts choices_of(const SeenFlag& flag) {
  Texts words;
  if (!flag.type.starts_with('{') || !flag.type.ends_with('}')) return words;
  std::size_t begin = 1;
  while (begin < flag.type.size()) {
    const std::size_t end = std::min(flag.type.find(',', begin), flag.type.size() - 1);
    words.push_back(flag.type.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

// The commands below, and the choices of a value that belongs to no flag.
Texts words_below(const Command& command) {
  Texts words;
  for (const Command* below : command.commands()) words.push_back(below->name());
  for (const SeenFlag& flag : command.flags()) {
    if (has_name(flag)) continue;
    for (std::string& word : choices_of(flag)) words.push_back(std::move(word));
  }
  return words;
}

// Whether file names may stand behind it without a flag.
bool takes_files(const Command& command) {
  const std::vector<SeenFlag> flags = command.flags();
  return std::ranges::any_of(flags, [](const SeenFlag& flag) { return !has_name(flag) && choices_of(flag).empty(); });
}

// The commands that have commands below them: the second word belongs to the path too.
Texts nested(const Command& root) {
  Texts names;
  for (const Command* below : root.commands()) {
    if (!below->commands().empty()) names.push_back(below->name());
  }
  return names;
}

// --- Text of scripts

// `text` with values in the place of names: "@PROGRAM@".
std::string filled(std::string text, const std::vector<std::pair<std::string, std::string>>& values) {
  for (const auto& [name, value] : values) {
    for (std::size_t at = text.find(name); at != std::string::npos; at = text.find(name, at + value.size())) {
      text.replace(at, name.size(), value);
    }
  }
  return text;
}

std::string array_of(const Texts& words) {
  Texts each;
  for (const std::string& word : words) each.push_back(shell_word(word));
  return fmt::format("({})", fmt::join(each, " "));
}

// --- bash and zsh

// Both read this function.
constexpr const char* kReplies =
    R"(# For the word $1 behind the words $2...: replies are commands, flags or choices; files=1 stands for names of
# files; given is the "--flag=" in front of a value.
_@PROGRAM@_replies() {
  local current=$1 at=${2-} flag= values=0 most=0 takes_files= word
  local -a below flags
  replies=() files= given= below=() flags=()
  shift
  [ $# -gt 0 ] && shift
  case $at in
    @NESTED@) [ $# -gt 0 ] && at="$at $1" && shift ;;
  esac
  for word in "$@"; do
    case $word in
      --*=*) flag=${word%%=*} values=1 ;;
      --*) flag=$word values=0 ;;
      '=') ;; # bash makes three words of --flag=value
      *) values=$((values + 1)) ;;
    esac
  done
  case $current in
    --*=*) flag=${current%%=*} values=0 given="${current%%=*}=" ;;
  esac
  case "$at ${flag//_/-}" in
@VALUES@  esac
  if [ "$values" -lt "$most" ] && { [ "$values" -eq 0 ] || [ "${current#-}" = "$current" ]; }; then
    [ ${#replies[@]} -gt 0 ] || files=1
    return
  fi
  replies=()
  [ -z "$given" ] || return
  case $at in
@WORDS@  esac
  case $current in
    -*) replies=("${flags[@]}") ;;
    *) replies=("${below[@]}") ;;
  esac
  [ -z "$current" ] && [ ${#below[@]} -eq 0 ] && [ -z "$takes_files" ] && replies=("${flags[@]}")
  [ ${#replies[@]} -gt 0 ] || files=1
}
)";

constexpr const char* kBash =
    R"(# bash completion of @PROGRAM@: source it, or put it into /usr/share/bash-completion/completions/@PROGRAM@
@REPLIES@_@PROGRAM@() {
  local -a replies
  local files given reply
  COMPREPLY=()
  _@PROGRAM@_replies "$2" "${COMP_WORDS[@]:1:COMP_CWORD-1}"
  if [ -n "$files" ]; then
    if [ -z "$given" ]; then compopt -o default; else mapfile -t replies < <(compgen -f -- "${2#"$given"}"); fi
  fi
  for reply in "${replies[@]}"; do
    [[ $given$reply == "$2"* ]] || continue
    printf -v reply %q "$reply"
    COMPREPLY+=("$given$reply")
  done
}
complete -F _@PROGRAM@ @PROGRAM@
)";

// From $fpath the file is the body of the function that it defines.
constexpr const char* kZsh =
    R"(#compdef @PROGRAM@
# zsh completion of @PROGRAM@: source it behind compinit, or put it into a folder of $fpath as _@PROGRAM@
@REPLIES@_@PROGRAM@() {
  local -a replies
  local files given
  _@PROGRAM@_replies "$PREFIX" "${(@)words[2,CURRENT-1]}"
  [[ -z $given ]] || compset -P 1 '*='
  if [[ -n $files ]]; then _files; else compadd -a replies; fi
}
if [[ ${funcstack[1]} == _@PROGRAM@ ]]; then _@PROGRAM@ "$@"; else compdef _@PROGRAM@ @PROGRAM@; fi
)";

// The lines of a `case`: how many values a flag has, and their choices. Flags that the help does not show have values
// too.
std::string values_of_flags(const Command& root) {
  std::string text;
  for (const auto& [path, command] : levels_of(root)) {
    for (const SeenFlag& flag : command->flags()) {
      if (flag.most == 0) continue;
      const Texts choices = choices_of(flag);
      const std::string replies = choices.empty() ? "" : " replies=" + array_of(choices);
      for (const std::string& name : flag.long_names) {
        text +=
            fmt::format("    {}) most={}{} ;;\n", shell_word(fmt::format("{} --{}", path, name)), flag.most, replies);
      }
    }
  }
  return text;
}

// The lines of a `case`: what stands behind a command.
std::string words_of_commands(const Command& root) {
  std::string text;
  for (const auto& [path, command] : levels_of(root)) {
    text += fmt::format("    {}) below={} flags={}{} ;;\n", shell_word(path), array_of(words_below(*command)),
                        array_of(shown_flags(*command)), takes_files(*command) ? " takes_files=1" : "");
  }
  return text;
}

std::string script_of(const char* shell, const Command& root) {
  Texts patterns;
  for (const std::string& name : nested(root)) patterns.push_back(shell_word(name));
  if (patterns.empty()) patterns.emplace_back("''");
  const std::string replies = filled(kReplies, {{"@PROGRAM@", root.name()},
                                                {"@NESTED@", fmt::format("{}", fmt::join(patterns, " | "))},
                                                {"@VALUES@", values_of_flags(root)},
                                                {"@WORDS@", words_of_commands(root)}});
  return filled(shell, {{"@PROGRAM@", root.name()}, {"@REPLIES@", replies}});
}

// --- fish

constexpr const char* kFish =
    R"(# fish completion of @PROGRAM@: source it, or put it into ~/.config/fish/completions/@PROGRAM@.fish
# Whether these are the commands on the line.
function __@PROGRAM@_at
  set -l words (commandline -opc)[2..]
  set -l at $words[1]
  contains -- "$at" @NESTED@; and set at "$words[1..2]"
  test "$at" = "$argv"
end
)";

std::string fish_quoted(const std::string& text) {
  std::string word = "'";
  for (const char c : text) {
    if (c == '\'' || c == '\\') word += '\\';
    word += c;
  }
  return word + "'";
}

// fish expands the words of -a once more.
std::string fish_list(const Texts& words) {
  Texts each;
  for (const std::string& word : words) each.push_back(fish_quoted(word));
  return fish_quoted(fmt::format("{}", fmt::join(each, " ")));
}

// What is completed behind a command, up to its words.
std::string fish_line(const Command& root, const std::string& path) {
  return fmt::format("complete -c {} -n {}", root.name(),
                     fish_quoted(fmt::format("__{}_at {}", root.name(), fish_quoted(path))));
}

std::string fish_flag(const std::string& line, const SeenFlag& flag) {
  const Texts choices = choices_of(flag);
  std::string value;
  if (flag.most > 0) value = choices.empty() ? " -r" : " -x -a " + fish_list(choices);
  std::string text;
  for (const std::string& name : flag.long_names) {
    text += fmt::format("{} -l {}{} -d {}\n", line, fish_quoted(name), value, fish_quoted(flag.about));
  }
  if (!has_name(flag) && !choices.empty()) text = fmt::format("{} -f -a {}\n", line, fish_list(choices));
  return text;
}

std::string fish_script(const Command& root) {
  Texts names;
  for (const std::string& name : nested(root)) names.push_back(fish_quoted(name));
  std::string text =
      filled(kFish, {{"@NESTED@", fmt::format("{}", fmt::join(names, " "))}, {"@PROGRAM@", root.name()}});
  for (const auto& [path, command] : levels_of(root)) {
    const std::string line = fish_line(root, path);
    for (const Command* below : command->commands()) {
      text += fmt::format("{} -f -a {} -d {}\n", line, fish_list({below->name()}), fish_quoted(below->about()));
    }
    for (const SeenFlag& flag : command->flags()) {
      if (flag.shown) text += fish_flag(line, flag);
    }
  }
  return text;
}

}  // namespace

std::string completion_script(std::string_view shell, const Command& root) {
  if (shell == "bash") return script_of(kBash, root);
  if (shell == "zsh") return script_of(kZsh, root);
  if (shell == "fish") return fish_script(root);
  config_error("completion: {} is no shell with a script here; use bash, zsh or fish",
               shell.empty() ? "nothing" : shown_text(std::string(shell)));
}

}  // namespace loom::cli
