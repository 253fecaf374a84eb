// OptimizerSchedule: learning rate and weight decay of a run, and their saved state.
//
// Units     samples of the training data, as in Megatron: the values of --lr-decay-iters and similar flags times the
//           global batch size. Only samples of updates that were made count: iterations of --iterations-to-skip and
//           overflows do not move the schedule.
// Saved     ScheduleState, under Megatron's names. A resumed run compares it with its command line: a value that
//           differs and has an effect is an error, unless --override-opt_param-scheduler (the command line holds) or
//           --use-checkpoint-opt_param-scheduler (the checkpoint holds) is given.
// Source    NVIDIA/Megatron-LM, megatron/training/training.py, get_optimizer_param_scheduler;
//           megatron/core/optimizer_param_scheduler.py, state_dict and load_state_dict.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>

#include "engine/train/lr_schedule.h"
#include "engine/train/schedule_options.h"

namespace loom::train {

struct OptimizerSchedule {
  LrSchedule lr;
  WeightDecaySchedule weight_decay;

  bool operator==(const OptimizerSchedule&) const = default;
};

// The schedule of these options, whose defaults are filled in.
OptimizerSchedule schedule_of(const ScheduleOptions& options);

// A schedule and its position. Numbers of steps are samples.
struct ScheduleState {
  double max_lr = 0.0;
  double min_lr = 0.0;
  double lr_warmup_steps = 0.0;
  std::int64_t num_steps = 0;
  std::string lr_decay_style;
  std::int64_t lr_decay_steps = 1;
  double start_wd = 0.0;
  double end_wd = 0.0;
  std::string wd_incr_style;
  std::int64_t wd_incr_steps = 1;
  // Not in Megatron's checkpoints. None: unknown, and the command line holds.
  std::optional<double> init_lr = {};
  std::optional<std::int64_t> wsd_decay_steps = {};  // with WSD only
  std::optional<std::string> lr_wsd_decay_style = {};

  bool operator==(const ScheduleState&) const = default;
};

ScheduleState state_of(const OptimizerSchedule& schedule, std::int64_t num_steps);

// Under the names above; values that are none are left out.
using NamedValues = std::map<std::string, std::variant<double, std::string>>;
NamedValues named_values(const ScheduleState& state);
// Other names are ignored. ConfigError: a name is missing, a text instead of a number or the other way round, a
// number of steps that is not whole, a value that no schedule has.
ScheduleState schedule_state(const NamedValues& values);

// The schedule with which a run of these options resumes. ConfigError names each flag that differs, the saved value and
// the given value; no error with one of the two flags.
OptimizerSchedule continued_schedule(const ScheduleState& saved, const ScheduleOptions& options);

}  // namespace loom::train
