// Job: what one training or planned job is, and what of it is written down. Each base and member is the options struct
// of one room, which gets that struct and never the job.
//
// Keys     every value that a user may set is a row of one table (key.h).
// Units    iterations are optimizer steps; batch sizes are sequences.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/observe/options.h"
#include "engine/train/arguments.h"

namespace loom::job {

struct Job : train::TrainArguments, observe::ReportOptions {
  observe::ProfileOptions profile;
  int sample_bytes = 0;               // length of the text generated after training; 0 = none. `shardloom train` only
  std::string prompt;                 // the text it continues. `shardloom train` only
  std::int64_t total_chunk_size = 0;  // above 0: loss_chunk_size follows from it and the micro-batch
  std::optional<std::string> ckpt_format_word;  // --ckpt-format as it was written
  std::vector<std::string> without_effect;  // flags of launch scripts that change nothing here, as they were written
  // Flags of launch scripts that describe the model, with their values (engine/cli/model_flags.h).
  std::vector<std::pair<std::string, std::string>> model_flags;
  // The flags that a program of pretrain() added, by name, with their values as text.
  std::vector<std::pair<std::string, std::string>> added_flags;
};

}  // namespace loom::job
