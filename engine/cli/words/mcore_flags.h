// The flags of `shardloom convert hf-to-mcore` and `mcore-to-hf`, and of MindSpeed-LLM's converters. Private to
// engine/cli.
//
// Names         from convert_ckpt_v2.py, if it has the flag.
// convert_ckpt  `convert_ckpt` and `convert_ckpt_v2`, also with .py, are these two commands: --load-model-type and
//               --save-model-type select one. mcore-to-hf by `convert_ckpt` reads config.json of --save-dir and writes
//               below it, to mg2hf, as that script does.
// Others        flags without effect here are accepted and named in one warning; flags that would change the result
//               and are not built are refused, all at once, together with the unknown ones.
// Errors        ConfigError with flag, value and allowed values.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/cli/words/command.h"
#include "engine/cli/words/convert_arguments.h"
#include "engine/cli/words/flags.h"

namespace loom::cli {

class McoreFlags {
 public:
  // Adds the two commands to `convert`.
  explicit McoreFlags(Command& convert);

  // Translates the words of convert_ckpt and convert_ckpt_v2 to words of convert; others stay as they are.
  static std::vector<std::string> respelled(std::vector<std::string> words);
  std::vector<const Command*> apps() const { return {&to_mcore_, &to_hf_}; }
  bool parsed() const { return to_mcore_.parsed() || to_hf_.parsed(); }
  // The flags of the parse that are not supported here.
  const std::vector<std::string>& refused() const { return refused_; }
  // After the parse.
  ConvertArguments settled() const;

 private:
  void add_import();
  void add_export();
  void add_checks(Flags& flags, checkpoint::ModelChecks& checks);

  Command& to_mcore_;
  Command& to_hf_;
  checkpoint::HfToMcore import_;
  checkpoint::McoreToHf export_;
  std::optional<std::string> schedule_;
  std::string shard_size_;
  std::vector<std::string> refused_;
  std::vector<std::string> without_effect_;
};

}  // namespace loom::cli
