// The command lines: `shardloom train ...`, also for plan, generate, chat, preprocess, compare, convert, merge and
// inspect, and the command line of a pretrain program (pretrain.h).
//
// Names    Megatron-LM's if Megatron has the flag; the meaning is then the same. Underscores may replace the
//          dashes, as in torchrun. Flags of launch scripts that nothing here depends on are accepted
//          (job/keys_foreign.cpp). Of a flag given twice the last counts, as with argparse.
// Presets  --model-config and --fsdp2-config-path take the name of a file in configs/models and configs/fsdp2 too.
// Units    iterations are optimizer steps; batch sizes are sequences.
// Errors   ConfigError in one line: flag, value, allowed values, nearest spelling; unknown and unsupported flags
//          are all in one error, a line each. The program prints it and exits with kExitUsage. Every check that
//          depends on flags alone is made here, before anything is allocated; files are read by their users.
// Threads  none are started; nothing here calls exit().
#pragma once

#include <any>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "engine/dialects/model_tree.h"
#include "engine/job/job.h"
#include "engine/launch/start.h"
#include "engine/launcher/options.h"
#include "engine/train/callbacks.h"
#include "engine/virtual_time/what_if.h"

namespace loom::cli {

// `shardloom compare A B`.
struct CompareArguments {
  std::filesystem::path a;  // a metrics.jsonl, an event file of TensorBoard, or a folder with them
  std::filesystem::path b;
  double tolerance = 0.0;     // relative error up to which values are the same
  bool assert_equal = false;  // torchtitan's name for the default: status 1 at a difference
};

// `shardloom plan`: the training flags, and the flags of the plan.
struct PlanArguments {
  enum class Fit : std::uint8_t { kNothing, kMicroBatch, kWorldSize, kSeqLength };

  job::Job train;                                    // ranks: --world-size; data and outputs of training are not used
  std::string device = "h200";                       // a profile: a file, or the name of one in configs/devices
  std::optional<std::string> software;               // a file, or a name in configs/software; none: the profile's
  std::optional<std::string> fp8_recipe;             // of linear layers (virtual_time/fp8.h); none: 16 bits
  bool fp8_param_gather = false;                     // their weights are gathered in FP8
  std::optional<std::filesystem::path> json;         // the file for the plan as JSON; "-": standard output, alone
  std::optional<std::filesystem::path> trace;        // the file for the step's virtual time, for Perfetto
  std::optional<std::filesystem::path> expert_load;  // a file (plan/expert_load.h); none: balanced
  std::vector<virtual_time::WhatIf> what_if;         // scaled figures of the device
  std::optional<double> tokens;                      // of the training whose cost is planned
  std::optional<double> price_per_device_hour;
  std::vector<std::string> compare;     // two files (compared_words.h); none: one plan
  std::vector<PlanArguments> compared;  // the plan with each of them; of this struct, `json` alone is used besides
  // --micro-batch-size and --global-batch-size, if given: a search keeps them.
  std::optional<int> micro_batch_size;
  std::optional<int> global_batch_size;
  bool sweep = false;       // try degrees of parallelism, keys of the file and micro-batches; rank those that fit
  Fit fit = Fit::kNothing;  // search the largest micro-batch, the smallest world, or the longest sequence, that fits
  // The fsdp2_config.yaml of what a search chose: of a sweep, its row. None: not written.
  std::optional<std::filesystem::path> write_config;
  int row = 0;
};

// `shardloom config`.
struct ConfigArguments {
  std::vector<std::string> words;
  std::string to;      // empty: show
  std::string schema;  // the dialect whose JSON Schema is written; empty: none
};

// `shardloom calibrate`.
struct CalibrateArguments {
  std::filesystem::path kernel_times;         // calibrate/kernel_times.h
  std::string device = "h200";                // the profile that is fitted: a file, or the name of one
  std::filesystem::path write_profile;        // the fitted profile; its name is the file's
  std::optional<std::filesystem::path> json;  // errors and figures; "-": standard output, alone
  double least_us = 44;                       // of a kernel that is used
};

// `shardloom explain`.
struct ExplainArguments {
  std::string text;                               // an error text, or a file with some; "-": standard input
  std::optional<PlanArguments> job;               // of the run; none: the text alone is explained
  std::optional<std::filesystem::path> snapshot;  // of torch.cuda.memory; with it or a trace there is a job and no text
  std::optional<std::filesystem::path> trace;     // of torch.profiler
  std::optional<std::filesystem::path> json;      // "-": standard output, alone
};

// `shardloom adapt`.
struct AdaptArguments {
  std::string script;
};

// `shardloom lint`.
struct LintArguments {
  std::vector<std::string> files;
  std::string format = "text";  // text, json, sarif
  std::string model;            // --model-config; empty: that of the file
  std::string model_graph;      // a recorded model; empty: none
  std::string device;           // profile whose memory the step has to fit in; empty: memory is not checked
  int world_size = 0;           // 0: that of the file, if it says one
};

// `shardloom torchrun` and `shardloom msrun`.
struct LauncherArguments {
  launcher::Options options;
  bool background = false;  // return when the workers of this node are on their way
};

// The command line asked for help: print `text` to standard output and end with `code`.
struct EarlyExit {
  int code = 0;
  std::string text;
};

// What needs less memory where nothing of the command line does.
inline constexpr std::string_view kMemoryAdvice = "free memory on it, or use a machine that has more";

// Of a command that a build may leave out (LOOM_TALK, LOOM_TEXT, LOOM_CONVERT).
struct OptionalArguments {
  std::any values;                                // the command's own struct, such as talk::ChatArguments
  std::optional<std::string_view> memory_advice;  // what needs less memory; none where launch::failure_text() says it
};

using ParsedCommand =
    std::variant<job::Job, PlanArguments, CompareArguments, ExplainArguments, CalibrateArguments, ConfigArguments,
                 LintArguments, AdaptArguments, LauncherArguments, OptionalArguments, EarlyExit>;

// Of the shardloom program; argv[0] is its name. `models`: for files that name modules. Throws ConfigError.
ParsedCommand parse_arguments(int argc, const char* const* argv, const launch::Start& start = launch::Start::detect(),
                              const dialects::Models& models = {});

// The command line of a pretrain() program: the flags of `shardloom train`, or behind the word `plan` the flags of
// `shardloom plan`, with the program's replacements, and the flags that `extra` adds.
using ParsedProgram = std::variant<job::Job, PlanArguments, EarlyExit>;
ParsedProgram parse_program_arguments(int argc, const char* const* argv,
                                      const std::function<void(train::ExtraArguments&)>& extra,
                                      const launch::Start& start = launch::Start::detect(),
                                      const dialects::Models& models = {});

}  // namespace loom::cli
