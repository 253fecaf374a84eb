// The flags of `shardloom convert hf-to-mm` and `mm-to-hf`, which `mm-convert Qwen2VLConverter` and
// `Qwen2_5_VLConverter` of MindSpeed-MM are too. Private to engine/cli.
//
// Names    each flag also has its name in MindSpeed-MM: --cfg.parallel_config.llm_pp_layers.
// Lists    [[1,10,10,7]], a list of stages for each virtual stage; [1,10,10,7] is one list.
// Others   settings of MindSpeed-MM that are not built are refused, all at once, unless they have their default.
// Errors   ConfigError with flag, value and allowed values.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/cli/words/command.h"
#include "engine/cli/words/convert_arguments.h"
#include "engine/cli/words/flags.h"

namespace loom::cli {

class MmFlags {
 public:
  // Adds the two commands to `convert`.
  explicit MmFlags(Command& convert);

  std::vector<const Command*> apps() const { return {&to_mm_, &to_hf_}; }
  bool parsed() const { return to_mm_.parsed() || to_hf_.parsed(); }
  // The flags of the parse that are not supported here.
  const std::vector<std::string>& refused() const { return refused_; }
  // After the parse.
  ConvertArguments settled() const;

  // Of config.json, for a converter of mm-convert; none for another name.
  static std::optional<std::string> model_type(std::string_view converter);
  // Refuses words behind such a converter that are not hf_to_mm or mm_to_hf.
  static void check_command(const std::string& converter, const std::string& command);

 private:
  void add_layout(Flags& flags, checkpoint::MmLayout& layout);
  void add_values(Flags& flags, std::optional<std::string>& model_type, std::optional<DType>& dtype);

  Command& to_mm_;
  Command& to_hf_;
  checkpoint::HfToMm import_;
  checkpoint::MmToHf export_;
  std::string shard_size_;
  std::vector<std::string> refused_;
  std::vector<std::string> without_effect_;
};

}  // namespace loom::cli
