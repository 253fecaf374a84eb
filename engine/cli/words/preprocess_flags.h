// The flags of `shardloom preprocess`, and of MindSpeed-LLM's preprocess_data. Private to engine/cli.
//
// Names    preprocess_data is an alias.
// YAML     the first word that is not a flag: a path ending in .yaml, or the name of a file in configs/datasets. Keys
//          are the flags' names with underscores; the command line overrides the file.
// Others   flags without effect here are accepted and named in one warning; flags that would change the result and
//          are not built are refused together with the unknown ones.
// Errors   ConfigError with flag or file:line.
#pragma once

#include <string>
#include <vector>

#include "engine/cli/words/command.h"
#include "engine/cli/words/preprocess_arguments.h"

namespace loom::cli {

class PreprocessFlags {
 public:
  explicit PreprocessFlags(Command& app);

  // The words of a command line, with the file expanded; other commands' words stay as they are.
  std::vector<std::string> written_out(std::vector<std::string> words) const;
  // The flags of the parse that are not supported here.
  const std::vector<std::string>& refused() const { return refused_; }
  // After the parse.
  PreprocessArguments settled() const;

 private:
  void add_files();
  void add_tokenizer();
  void add_conversion();
  void add_lines();
  void add_work();
  void add_without_effect();
  void add_refused();

  Command& app_;
  PreprocessArguments values_;
  bool hugging_face_ = true;  // --tokenizer-type; there is no other
  std::vector<std::string> refused_;
};

}  // namespace loom::cli
