// Translation: a configuration file of any dialect as flags of the job and keys of fsdp2_config.yaml.
//
// Order     recognise -> overrides -> every key against its row -> what several keys say together.
// Values    flags are words as on the command line, so that a flag given there later replaces one of the file.
// Defaults  those of the file's own tool, written out with that origin.
// Errors    ConfigError. What is refused of the file's keys is gathered in `refused`: one run names all of it.
// Limits    those of config/document.h.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/dialects/dialect.h"
#include "engine/dialects/model_tree.h"
#include "engine/job/value.h"
#include "sharding/config/fsdp2_config.h"

namespace loom::dialects {

// What is known beside the file.
struct Context {
  int world = 1;             // ranks: of the launcher or of flags
  bool world_given = false;  // false: the file may say how many
  int nodes = 1;             // machines
  // The value of a flag on the command line, its last word; none where it is not given.
  Models models = {};
  std::function<std::optional<std::string>(std::string_view flag)> flag = [](auto) { return std::nullopt; };
};

// A flag, or a key of fsdp2_config.yaml, and where its value comes from.
struct Setting {
  std::string name;    // "--lr", "param_dtype"
  job::Texts words;    // behind the flag; of a key: its value as YAML
  std::string origin;  // "FILE:3:5 training.lr", "default of MindSpeed-MM (six sections)"
};

struct Translation {
  Dialect dialect = Dialect::kFlat;
  std::string file;
  std::vector<Setting> flags;
  std::vector<Setting> keys;
  // The keys above, with the places of the file. None: the file says nothing of sharding.
  std::optional<sharding::Fsdp2Config> config;
  std::optional<int> world;                 // ranks, where the file says how many
  std::string model_class;                  // empty: not known
  bool model_is_built = true;               // false: the class is known and not built
  std::vector<std::string> without_effect;  // dotted keys
  std::vector<std::string> listed;
  std::vector<std::string> missing;  // "model.model_name_or_path: ..."
  std::vector<std::string> notes;    // one line each
  std::vector<std::string> refused;  // one line each, "file:line:column: ..."
};

// A word of a command line for the file: "--training.lr=1e-4", or "--training.lr 1e-4".
bool is_override(std::string_view word);

// `overrides`: such words with their values, in the order of the command line.
Translation translate(const std::filesystem::path& file, const job::Texts& overrides, const Context& context);
Translation translate_text(std::string_view text, std::string_view file_name, const job::Texts& overrides,
                           const Context& context);
// Whether the text is of another dialect than fsdp2_config.yaml, as far as its top-level keys tell. ConfigError as
// recognise().
bool is_foreign(std::string_view text, std::string_view file_name);
// torchtitan's command line, which has no file.
Translation translate_titan(const job::Texts& words, const Context& context);

// ConfigError with all that is refused; nothing where nothing is.
void raise_refused(const Translation& translation);

// "MindSpeed-MM (six sections): FILE", the keys without effect, those that are listed, and the notes: a line each.
std::vector<std::string> told_of(const Translation& translation);

}  // namespace loom::dialects
