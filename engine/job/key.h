// Key: one value of the job that a user may set; keys() is the one table of them.
//
// A row says everything about its key: how it is spelled, where its value is kept, its type and range, its default, its
// help, which commands have it, whether ranks must agree on it, and whether a checkpoint keeps it. The rows make the
// command line, both helps, docs/flags.md, the agreement of the ranks, the arguments in checkpoints, the effective
// configuration and shell completion. To add a key, add its member to the options struct of its room and its row to the
// table; docs/contributing.md has the steps.
//
// Rows      key tables of this folder (keys_*.cpp), in the order of the help.
// Errors    ConfigError with flag, value and the allowed values, from read_value().
// Threads   the table is constant.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "engine/job/job.h"
#include "engine/job/value.h"

namespace loom::job {

// The command lines. A program of pretrain() replaces a few keys of `shardloom` with its own.
enum class Program : std::uint8_t { kShardloomTrain, kShardloomPlan, kUsersTrain, kUsersPlan };

constexpr bool is_users(Program program) { return program == Program::kUsersTrain || program == Program::kUsersPlan; }
constexpr bool plans(Program program) { return program == Program::kShardloomPlan || program == Program::kUsersPlan; }

enum class Kind : std::uint8_t {
  kToggle,   // bool; a flag without a value
  kWhole,    // std::int64_t
  kReal,     // double, finite
  kChoice,   // one of words(), as text
  kText,     // a text or a path
  kTexts,    // one or more
  kNumbers,  // whole numbers, one or more
};

// A test of a number, and its description: "a number above 0".
struct Range {
  bool (*holds)(double) = nullptr;
  std::string_view allowed = {};
};

// What comes of the flag.
enum class Outcome : std::uint8_t {
  kBuilt,   // it sets a value of the job
  kSilent,  // of launch scripts; changes nothing here, where its value is accepted (foreign.h)
  kNamed,   // the same, and named in one line
};

// What ranks that are processes compare before the first step; ranks that differ end with an error.
enum class Agreement : std::uint8_t {
  kValue,
  kContent,  // whether it is given: its referent is compared by content (train/same_job.h)
  kNone,     // each rank may have its own
};

struct Key {
  std::string_view flags;  // "--tokenizer-name-or-path,--tokenizer-model": the name, then aliases
  Kind kind = Kind::kText;
  std::string_view type = {};     // of the value in the help: "DIR"
  std::string_view about = {};    // one sentence of the help, without its full stop
  std::string_view heading = {};  // of the help
  std::int64_t least = 0;         // kWhole, kNumbers
  std::int64_t most = std::numeric_limits<std::int64_t>::max();
  Range range = {};                    // kReal
  Texts (*words)() = nullptr;          // kChoice
  std::string_view default_from = {};  // the origin of the default if it is no constant
  bool optional = false;               // may be None
  // The commands that have it, and whether a command accepts it without showing it in its help.
  bool in_train = true;
  bool in_plan = true;
  bool in_users_programs = true;
  bool hidden_in_plan = false;
  bool hidden_in_users_programs = false;  // and gives way to a flag that the program adds
  bool common = false;                    // in the short help
  Agreement agreement = Agreement::kValue;
  // The jobs whose checkpoints keep the value below args.*: for keys that steer the computation. Null: none.
  bool (*is_saved)(const Job&) = nullptr;

  Outcome outcome = Outcome::kBuilt;
  std::string_view accepted = {};  // not kBuilt: values that change nothing, with '|' between them; empty: none
  std::string_view advice = {};    // not kBuilt: why another value is refused, and what to write

  // Null where the flag sets no value.
  Value (*get)(const Job&) = nullptr;
  void (*set)(Job&, const Value&) = nullptr;  // a value of the key's kind, in its range

  std::string_view name() const { return flags.substr(0, flags.find(',')); }
  // All of them, without the mark of a negation: "--muon-nesterov", "--no-muon-nesterov".
  std::vector<std::string_view> names() const;
  bool is_in(Program program) const {
    return (plans(program) ? in_plan : in_train) && (in_users_programs || !is_users(program));
  }

  // For the tables.
  constexpr Key from(std::string_view where) const { return changed(&Key::default_from, where); }
  constexpr Key not_in_plan() const { return changed(&Key::in_plan, false); }
  constexpr Key not_in_train() const { return changed(&Key::in_train, false); }
  constexpr Key not_in_users_programs() const { return changed(&Key::in_users_programs, false); }
  constexpr Key without_help_in_plan() const { return changed(&Key::hidden_in_plan, true); }
  constexpr Key of_the_programs_own_model() const { return changed(&Key::hidden_in_users_programs, true); }
  constexpr Key up_to(std::int64_t largest) const { return changed(&Key::most, largest); }
  constexpr Key is_common() const { return changed(&Key::common, true); }
  constexpr Key of_this_rank() const { return changed(&Key::agreement, Agreement::kNone); }
  constexpr Key saved() const {
    return saved_if([](const Job&) { return true; });
  }
  constexpr Key saved_if(bool (*holds)(const Job&)) const { return changed(&Key::is_saved, holds); }
  constexpr Key named() const { return changed(&Key::outcome, Outcome::kNamed); }
  constexpr Key by_content() const { return changed(&Key::agreement, Agreement::kContent); }

 private:
  template <class T>
  constexpr Key changed(T Key::*member, T value) const {
    Key key = *this;
    key.*member = value;
    return key;
  }
};

// All keys that set a value, in the order of the help.
const std::vector<Key>& keys();
// Those that set none: flags of launch scripts, which the help does not show.
const std::vector<Key>& foreign_keys();
// Whether a program's own flag has this name, and takes the place of the key.
bool is_added(const WrittenFlags& written, std::string_view flag);
// The key with that flag ("--lr"), of either table, or null.
const Key* find_key(std::string_view flag);

// The value of the words behind a flag: checked against kind, range and choices.
Value read_value(const Key& key, const Texts& words);
// The words behind the flag; empty for None and for a toggle.
Texts words_of(const Key& key, const Value& value);
// The default in the help: a constant's text, or its origin.
std::string default_text(const Key& key);

}  // namespace loom::job
