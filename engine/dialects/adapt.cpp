#include "engine/dialects/adapt.h"

#include <algorithm>
#include <cctype>
#include <fmt/core.h>
#include <optional>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"

namespace loom::dialects {
namespace {

struct Word {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::string text;  // as written, quotes included
};
using Command = std::vector<Word>;

constexpr std::size_t kMostBytes = std::size_t{1} << 20;

bool is_space(char c) { return c == ' ' || c == '\t'; }
bool ends_command(char c) { return std::string_view("\n;&|(){}").find(c) != std::string_view::npos; }

int line_of(std::string_view script, std::size_t at) {
  return 1 + static_cast<int>(std::ranges::count(script.substr(0, at), '\n'));
}

// The simple commands of a script: words between newlines, pipes and brackets.
class Commands {
 public:
  Commands(std::string_view script, const std::string& file) : script_(script), file_(file) {}

  std::vector<Command> read() {
    while (at_ < script_.size()) {
      const char c = script_[at_];
      if (is_continuation()) {
        at_ += 2;
      } else if (is_space(c)) {
        ++at_;
      } else if (c == '#') {
        at_ = std::min(script_.find('\n', at_), script_.size());
      } else if (ends_command(c)) {
        ++at_;
        close();
        if (c == '\n') skip_here_document();
      } else {
        read_word();
      }
    }
    close();
    return std::move(commands_);
  }

 private:
  bool is_continuation() const { return script_.substr(at_, 2) == "\\\n"; }

  void read_word() {
    Word word{at_, at_, {}};
    for (; at_ < script_.size(); ++at_) {
      const char c = script_[at_];
      if (is_space(c) || is_continuation()) break;
      if (c == '\\') {
        ++at_;
      } else if (c == '\'' || c == '"' || c == '`') {
        at_ = closing(c);
      } else if (script_.substr(at_, 2) == "$(" || script_.substr(at_, 2) == "${") {
        at_ = closing_bracket();
      } else if (ends_command(c)) {
        break;
      }
    }
    at_ = std::min(at_, script_.size());
    word.end = at_;
    word.text = script_.substr(word.begin, word.end - word.begin);
    if (word.text.starts_with("<<") && !word.text.starts_with("<<<")) note_here_document(word.text);
    command_.push_back(std::move(word));
  }

  std::size_t closing(char quote) const {
    for (std::size_t i = at_ + 1; i < script_.size(); ++i) {
      if (script_[i] == '\\' && quote != '\'') {
        ++i;
      } else if (script_[i] == quote) {
        return i;
      }
    }
    refuse_open(std::string(1, quote));
  }

  std::size_t closing_bracket() const {
    const char open = script_[at_ + 1], close = open == '(' ? ')' : '}';
    int depth = 0;
    for (std::size_t i = at_ + 1; i < script_.size(); ++i) {
      if (script_[i] == '\\') {
        ++i;
      } else if (script_[i] == open) {
        ++depth;
      } else if (script_[i] == close && --depth == 0) {
        return i;
      }
    }
    refuse_open(fmt::format("${}", open));
  }

  [[noreturn]] void refuse_open(const std::string& what) const {
    config_error("{}:{}: {} is not closed; close it", escaped(file_), line_of(script_, at_), what);
  }

  void note_here_document(const std::string& word) {
    std::string delimiter = word.substr(word.starts_with("<<-") ? 3 : 2);
    std::erase_if(delimiter, [](char c) { return c == '\'' || c == '"' || c == '\\'; });
    if (!delimiter.empty()) delimiter_ = delimiter;
  }

  void skip_here_document() {
    if (!delimiter_) return;
    while (at_ < script_.size()) {
      const std::size_t end = std::min(script_.find('\n', at_), script_.size());
      std::string_view line = script_.substr(at_, end - at_);
      while (line.starts_with('\t')) line.remove_prefix(1);
      at_ = std::min(end + 1, script_.size());
      if (line == *delimiter_) break;
    }
    delimiter_.reset();
  }

  void close() {
    if (!command_.empty()) commands_.push_back(std::move(command_));
    command_.clear();
  }

  std::string_view script_;
  const std::string& file_;
  std::size_t at_ = 0;
  Command command_;
  std::vector<Command> commands_;
  std::optional<std::string> delimiter_;
};

bool is_assignment(const std::string& word) {
  const std::size_t equals = word.find('=');
  return equals != std::string::npos && equals > 0 &&
         std::all_of(word.begin(), word.begin() + static_cast<std::ptrdiff_t>(equals),
                     [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; });
}

std::string_view last_part(std::string_view path) { return path.substr(path.rfind('/') + 1); }

bool is_python(std::string_view word) { return last_part(word) == "python" || last_part(word) == "python3"; }

bool is_config(const std::string& word) {
  return !word.starts_with('-') && (word.ends_with(".yaml") || word.ends_with(".yml") || word.ends_with(".json"));
}

// accelerate's names of flags that have another name here.
constexpr std::pair<std::string_view, std::string_view> kAccelerateFlags[] = {{"--num_processes", "--nproc-per-node"},
                                                                              {"--num_machines", "--nnodes"},
                                                                              {"--machine_rank", "--node-rank"},
                                                                              {"--main_process_ip", "--master-addr"},
                                                                              {"--main_process_port", "--master-port"}};

class Adapting {
 public:
  Adapting(std::string_view script, const std::string& file) : script_(script), file_(file) {}

  AdaptedScript result() {
    bool found = false;
    for (const Command& command : Commands(script_, file_).read()) found |= adapt(command);
    if (!found) {
      config_error(
          "{}: no line starts torchrun, msrun, accelerate launch or python -m torch.distributed.run; give the script "
          "that does",
          escaped(file_));
    }
    return {with_edits(), std::move(changes_)};
  }

 private:
  struct Edit {
    std::size_t begin;
    std::size_t end;
    std::string text;
  };

  bool adapt(const Command& command) {
    std::size_t first = 0;
    while (first < command.size() && (is_assignment(command[first].text) || command[first].text == "nohup" ||
                                      command[first].text == "exec" || command[first].text == "time")) {
      ++first;
    }
    if (first == command.size()) return false;
    const std::string_view name = last_part(command[first].text);
    if (name == "source" || name == ".") adapt_source(command, first);
    const auto word = [&](std::size_t i) { return i < command.size() ? command[i].text : std::string{}; };
    const bool by_module =
        is_python(name) && word(first + 1) == "-m" && word(first + 2).starts_with("torch.distributed.");
    if (by_module) return adapt_launch(command, first, first + 3), true;
    if (name == "accelerate" && word(first + 1) == "launch") return adapt_launch(command, first, first + 2), true;
    if (name == "torchrun" || name == "msrun") return adapt_launch(command, first, first + 1), true;
    return false;
  }

  void adapt_source(const Command& command, std::size_t first) {
    if (first + 1 >= command.size() || !command[first + 1].text.ends_with("set_env.sh")) return;
    const Word& sourced = command[first + 1];
    replace(command[first].begin, command[first].begin, fmt::format("[ ! -e {} ] || ", sourced.text));
    say(command[first], fmt::format("{} is sourced only where it exists", sourced.text));
  }

  void adapt_launch(const Command& command, std::size_t first, std::size_t next) {
    const bool by_accelerate = last_part(command[first].text) == "accelerate";
    const auto program = std::find_if(command.begin() + static_cast<std::ptrdiff_t>(next), command.end(),
                                      [](const Word& word) { return word.text.ends_with(".py"); });
    if (program == command.end()) {
      config_error("{}:{}: {} starts no Python program that is written out; write its name there", escaped(file_),
                   line_of(script_, command[first].begin), command[first].text);
    }
    const std::size_t place = static_cast<std::size_t>(program - command.begin());
    std::string start = "shardloom train";
    for (std::size_t i = next; by_accelerate && i < place; ++i) start += accelerate_flag(command, i);
    if (place + 1 < command.size() && is_config(command[place + 1].text)) {
      start += " " + command[place + 1].text;
      remove(command[place + 1]);
      say(command[place + 1], fmt::format("{} moves behind shardloom train", command[place + 1].text));
    }
    replace(command[first].begin, command[next - 1].end, start);
    say(command[first],
        fmt::format("{} is {}", script_.substr(command[first].begin, command[next - 1].end - command[first].begin),
                    start));
    remove(*program);
    say(*program, fmt::format("{} is removed: shardloom train is the program", program->text));
  }

  // A flag of accelerate's launcher; the configuration file goes to the front.
  std::string accelerate_flag(const Command& command, std::size_t at) {
    const std::string name = command[at].text.substr(0, command[at].text.find('='));
    if (name == "--config_file") {
      const bool apart = name.size() == command[at].text.size();
      remove(command[at]);
      if (apart && at + 1 < command.size()) remove(command[at + 1]);
      say(command[at], "--config_file is the first word behind shardloom train");
      return " " + (apart && at + 1 < command.size() ? command[at + 1].text : command[at].text.substr(name.size() + 1));
    }
    const auto* flag = std::ranges::find(kAccelerateFlags, name, [](const auto& pair) { return pair.first; });
    if (flag == std::end(kAccelerateFlags)) return {};
    replace(command[at].begin, command[at].begin + name.size(), std::string(flag->second));
    say(command[at], fmt::format("{} is {}", name, flag->second));
    return {};
  }

  void replace(std::size_t begin, std::size_t end, std::string text) {
    edits_.push_back({begin, end, std::move(text)});
  }
  // With the blanks in front of it.
  void remove(const Word& word) {
    std::size_t begin = word.begin;
    while (begin > 0 && is_space(script_[begin - 1])) --begin;
    // An empty line would end a continued command: its backslash stays where the word was alone on the line.
    const bool alone = begin == 0 || script_[begin - 1] == '\n';
    replace(alone ? word.begin : begin, word.end, "");
  }

  void say(const Word& word, std::string text) { changes_.push_back({line_of(script_, word.begin), std::move(text)}); }

  std::string with_edits() {
    std::ranges::stable_sort(edits_, {}, &Edit::begin);
    std::ranges::stable_sort(changes_, {}, &ScriptChange::line);
    std::string text;
    std::size_t at = 0;
    for (const Edit& edit : edits_) {
      text += script_.substr(at, edit.begin - at);
      text += edit.text;
      at = edit.end;
    }
    return text + std::string(script_.substr(at));
  }

  std::string_view script_;
  const std::string& file_;
  std::vector<Edit> edits_;
  std::vector<ScriptChange> changes_;
};

}  // namespace

AdaptedScript adapt_script(std::string_view script, const std::string& file) {
  if (script.size() > kMostBytes)
    config_error("{} has {} bytes; a script has at most {}", escaped(file), script.size(), kMostBytes);
  return Adapting(script, file).result();
}

}  // namespace loom::dialects
