// The flags of `shardloom convert` and `shardloom inspect`, and the spellings of other converters. Private to
// engine/cli.
//
// mm-convert   `mm-convert GenericDCPConverter hf_to_dcp --hf_dir ...`, as in MindSpeed-MM, is `convert hf-to-dcp`.
//              If JSONARGPARSE_DEFAULT_ENV is true, variables MM_CONVERT_GENERICDCPCONVERTER__HF_TO_DCP__HF_DIR set
//              flags too.
// mcore        the commands to and from Megatron-core, and MindSpeed-LLM's convert_ckpt: mcore_flags.h.
// mm           the commands to and from MindSpeed-MM, and its Qwen converters: mm_flags.h.
// --config     a YAML file of flags, their names with underscores; also below the converter's and the command's name.
//              Names with dots may be mappings: cfg: {mm_dir: DIR}.
// Order        environment, file, command line: the last one counts.
// Errors       ConfigError with flag, file:line or variable.
#pragma once

#include <string>
#include <vector>

#include "engine/cli/words/command.h"
#include "engine/cli/words/convert_arguments.h"
#include "engine/cli/words/mcore_flags.h"
#include "engine/cli/words/mm_flags.h"

namespace loom::cli {

class ConvertFlags {
 public:
  // Adds the commands to `convert`.
  explicit ConvertFlags(Command& convert);

  // The words of a command line, with environment and file expanded; other commands' stay as they are.
  std::vector<std::string> written_out(std::vector<std::string> words) const;
  std::vector<const Command*> apps() const;
  // The flags of the parse that are not supported here.
  const std::vector<std::string>& refused() const { return mm_.parsed() ? mm_.refused() : mcore_.refused(); }
  // After the parse.
  ConvertArguments settled() const;

 private:
  // Flags of hf-to-dcp and dcp-to-hf, before they are interpreted.
  struct Given {
    std::vector<std::string> ties;
    std::string shard_size;
    std::vector<std::string> without_effect;
  };

  const Command& named(const std::string& command) const;
  void add_weights(Command& app, checkpoint::WeightOptions& options, Given& given);

  Command& convert_;
  Command& hf_to_dcp_;
  Command& dcp_to_hf_;
  Command& dcp_to_dcp_;
  McoreFlags mcore_;
  MmFlags mm_;
  checkpoint::HfToDcp import_;
  checkpoint::DcpToHf export_;
  checkpoint::DcpToDcp reshard_;
  Given import_given_;
  Given export_given_;
};

void add_inspect(Command& app, InspectArguments& values);
void check(const InspectArguments& values);

void add_merge(Command& app, MergeArguments& values);
void check(const MergeArguments& values);

}  // namespace loom::cli
