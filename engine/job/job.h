// Job: one training or planned job, and its record in files: a section for each room, which gets that
// section and never the job.
//
// Keys     every value that a user may set is a row of one table (key.h).
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/observe/options.h"
#include "engine/train/sections.h"

namespace loom::job {

// The text that `shardloom train` generates after training.
struct SampleOptions {
  int sample_bytes = 0;  // its length; 0 = none
  std::string prompt;    // the text that it continues
};

// Flags as they were written.
struct WrittenFlags {
  // Lines on the configuration file that flags came from, the first names its dialect; none without such a file.
  std::vector<std::string> told;
  // Those that set no value (foreign.h), with their values, in the order of the parse.
  std::vector<std::pair<std::string, std::string>> foreign;
  std::vector<std::string> without_effect;  // of launch scripts, that change nothing here
  // Flags that a program of pretrain() added, by name, with their values as text.
  std::vector<std::pair<std::string, std::string>> added_flags;
};

struct Job : train::TrainSections {
  observe::ReportOptions report;
  observe::ProfileOptions profile;
  SampleOptions sample;
  WrittenFlags written;
};

}  // namespace loom::job
