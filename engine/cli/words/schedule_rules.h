// Rules that combine the flags of a run's length, its schedules and its loss scale, and the values that follow
// from them. Private to engine/cli.
//
// Flags without effect beside the others, as in Megatron (the loss scale of a bf16 run, --lr-warmup-init
// without warm-up), are listed among the flags without effect.
//
// Source   NVIDIA/Megatron-LM, megatron/training/arguments.py, validate_args.
// Errors   ConfigError in one line: flag, value, allowed values.
#pragma once

#include <cstdint>
#include <string_view>

#include "engine/cli/words/arguments.h"
#include "engine/cli/words/command.h"

namespace loom::cli {

constexpr std::int64_t kMostSteps = 4'294'967'295;

void check_limit(std::string_view flag, std::int64_t value, std::int64_t most, std::string_view why = "");

// After the batch is known.
void settle_schedule(const Command& app, train::ScheduleOptions& schedule, job::WrittenFlags& written);
void check_weight_decay(const Command& app, const train::ScheduleOptions& schedule);
void settle_loss_scale(const Command& app, train::OptimizerOptions& optimizer, job::WrittenFlags& written);
// Runs after everything that refers to single steps. A plan has none to skip.
void settle_iterations_to_skip(bool planned, job::Job& values);

}  // namespace loom::cli
