// ScheduleOptions: the batch of a step, the number of steps, the schedules of learning rate and weight decay,
// and when a run evaluates, saves and ends. Names and meanings are Megatron's where it has them.
//
// Units    iterations are optimizer steps; batch sizes are sequences.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/train/exit_decision.h"
#include "engine/train/lr_schedule.h"

namespace loom::train {

struct ScheduleOptions : EndOptions {
  int micro_batch_size = 1;   // sequences of one forward/backward on a rank
  int global_batch_size = 0;  // sequences of a step on all ranks; filled in: default micro_batch_size * ranks

  std::int64_t train_iters = 100;  // filled in with train_samples: the whole batches in it
  // Above 0: the lengths of the run and of its schedule are the sample counts below, not the iterations.
  std::int64_t train_samples = 0;
  // Above 0: train_iters is filled in with the number of whole batches in an epoch of the data, times this.
  std::int64_t train_epochs = 0;
  std::vector<std::int64_t> iterations_to_skip = {};  // from 1; ascending, each once
  double lr = 3e-4;
  double min_lr = 0.0;
  LrDecayStyle lr_decay_style = LrDecayStyle::kLinear;
  std::int64_t lr_decay_iters = 0;    // filled in: default train_iters
  std::int64_t lr_decay_samples = 0;  // filled in: default train_samples
  WsdDecayStyle lr_wsd_decay_style = WsdDecayStyle::kExponential;
  std::int64_t lr_wsd_decay_iters = 0;  // the last part of WSD
  std::int64_t lr_wsd_decay_samples = 0;
  std::int64_t lr_warmup_iters = 0;
  std::int64_t lr_warmup_samples = 0;
  std::optional<double> lr_warmup_fraction = {};  // of the decay's length; replaces the two above
  double lr_warmup_init = 0.0;
  bool override_opt_param_scheduler = false;        // in a resumed run, the command line's schedule holds
  bool use_checkpoint_opt_param_scheduler = false;  // or the checkpoint's; not both

  double weight_decay = 0.01;
  WeightDecayIncrStyle weight_decay_incr_style = WeightDecayIncrStyle::kConstant;
  std::optional<double> start_weight_decay = {};  // both set exactly if the style is not constant
  std::optional<double> end_weight_decay = {};

  bool skip_train = false;  // evaluate the held-out and the test data, and take no step
  std::int64_t eval_interval = 100;
  std::int64_t eval_iters = 10;  // batches of one evaluation; 0 = no evaluation
};

}  // namespace loom::train
