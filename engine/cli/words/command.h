// Command: a command of a command line, with its flags and the commands below it. CLI11 parses and prints behind it, in
// command.cpp alone.
//
// Lifetime  a command owns the commands below it; values that its flags write into live as long as it does.
// Errors    ConfigError from parse(), unless refusals are collected.
//
// Private to engine/cli.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace loom::cli {

// A flag, or a value without one.
struct NewFlag {
  std::string names;      // "--lr", with aliases behind commas; "PATH": values that belong to no flag
  std::string type = {};  // of its value in the help: "N"
  std::string default_text = {};
  std::string about = {};
  std::string group = {};   // heading in the help; empty: not shown
  std::string common = {};  // heading in the short help; empty: not in it
  int least = 1;            // values of the flag
  int most = 1;
  // Gets all values, including a repeated flag's. Its exceptions leave parse().
  std::function<void(const std::vector<std::string>& values)> take = {};
};

// The state of a flag in a parsed command line.
struct SeenFlag {
  std::string name;                     // its first name: "--lr"
  std::vector<std::string> long_names;  // without dashes: "lr"
  std::string type;                     // of its value in the help
  std::string about;
  bool shown = true;                // in the help
  int most = 1;                     // values; 0: a toggle
  std::vector<std::string> values;  // empty: not given
  bool given = false;
};

class Command {
 public:
  Command(const std::string& about, const std::string& name);
  ~Command();
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  Command& add_command(const std::string& name, const std::string& about);
  // std::invalid_argument for an invalid flag name.
  void add(const NewFlag& flag);
  // A flag without a value: "--x", or "--x,!--no-x"; the last one counts. Uses names and texts of `flag`.
  void add_toggle(const NewFlag& flag, const std::function<void(bool)>& take);
  // From here on, an invalid value becomes a line of `refused`, which outlives the parse, and the parse continues.
  void gather_refusals(std::vector<std::string>& refused) { refused_ = &refused; }
  // Removes a flag that is hidden from the help; does nothing for others.
  void remove_hidden(const std::string& name);
  void set_footer(const std::string& text);
  void set_version(const std::string& text, const std::string& about);

  const std::string& name() const { return name_; }
  std::string about() const;
  std::vector<const Command*> commands() const;  // below this one
  std::string full_name() const;                 // "shardloom convert hf-to-dcp"
  bool has(const std::string& flag) const;
  bool has_short_help() const;                     // of common flags
  int most_values(const std::string& flag) const;  // 0 also for an unknown flag
  std::vector<SeenFlag> flags() const;

  // `words`: without the program. The help's or version's text and the exit status, if the words request it: for a
  // command with common flags, --help prints these, and --help all every flag.
  struct Printed {
    int code = 0;
    std::string text;
  };
  std::optional<Printed> parse(const std::vector<std::string>& words);
  // After the parse.
  bool parsed() const;
  bool given(const std::string& flag) const;           // false also for an unknown flag
  std::string text_of(const std::string& flag) const;  // its last value, else its default
  std::vector<std::string> remaining() const;          // words that belong to no flag
  const Command* chosen() const;                       // the subcommand that the words name

 private:
  struct Parser;
  void add_option(const NewFlag& flag);
  Command(std::unique_ptr<Parser> parser, const Command* parent);

  std::unique_ptr<Parser> parser_;
  const Command* const parent_ = nullptr;
  const std::string name_;
  std::vector<std::unique_ptr<Command>> below_;
  std::vector<std::string>* refused_ = nullptr;
};

// Whether the flag is on the command line.
inline bool given(const Command& command, const std::string& flag) { return command.given(flag); }

}  // namespace loom::cli
