// Promise: a run's schedule is counted in samples as Megatron counts it, is saved under Megatron's names, and a run
//          that goes on does so with another schedule only where it is told which one holds.
#include "engine/train/optimizer_schedule.h"

#include <gtest/gtest.h>

#include "engine/core/error.h"
#include "tests/support/files.h"

namespace loom::train {
namespace {

using test::message_of;

// Cosine from 1e-3 to 1e-4 over 100 iterations of 16 samples, warm-up of 10.
ScheduleOptions cosine() {
  ScheduleOptions options;
  options.global_batch_size = 16;
  options.train_iters = options.lr_decay_iters = 100;
  options.lr_warmup_iters = 10;
  options.lr = 1e-3;
  options.min_lr = 1e-4;
  options.lr_decay_style = LrDecayStyle::kCosine;
  options.weight_decay = 0.1;
  return options;
}

ScheduleOptions wsd() {
  ScheduleOptions options = cosine();
  options.lr_decay_style = LrDecayStyle::kWsd;
  options.lr_wsd_decay_style = WsdDecayStyle::kMinusSqrt;
  options.lr_wsd_decay_iters = 20;
  options.lr_warmup_init = 1e-5;
  options.weight_decay_incr_style = WeightDecayIncrStyle::kLinear;
  options.start_weight_decay = 0.01;
  options.end_weight_decay = 0.1;
  return options;
}

ScheduleState saved(const ScheduleOptions& options, std::int64_t samples = 640) {
  return state_of(schedule_of(options), samples);
}

TEST(OptimizerSchedule, IterationsAreTimesTheBatch) {
  const OptimizerSchedule schedule = schedule_of(wsd());
  EXPECT_EQ(schedule.lr, (LrSchedule{.max_lr = 1e-3,
                                     .min_lr = 1e-4,
                                     .style = LrDecayStyle::kWsd,
                                     .warmup_steps = 160,
                                     .decay_steps = 1600,
                                     .init_lr = 1e-5,
                                     .wsd_style = WsdDecayStyle::kMinusSqrt,
                                     .wsd_decay_steps = 320}));
  EXPECT_EQ(
      schedule.weight_decay,
      (WeightDecaySchedule{.start = 0.01, .end = 0.1, .style = WeightDecayIncrStyle::kLinear, .incr_steps = 1600}));
}

TEST(OptimizerSchedule, SamplesAreTaken) {
  ScheduleOptions options = wsd();
  options.train_samples = 1000;
  options.train_iters = 62;
  options.lr_decay_samples = 900;
  options.lr_warmup_iters = 0;
  options.lr_warmup_samples = 90;
  options.lr_wsd_decay_samples = 300;
  const OptimizerSchedule schedule = schedule_of(options);
  EXPECT_EQ(schedule.lr.decay_steps, 900);
  EXPECT_EQ(schedule.lr.warmup_steps, 90);
  EXPECT_EQ(schedule.lr.wsd_decay_steps, 300);
  EXPECT_EQ(schedule.weight_decay.incr_steps, 1000);
}

TEST(OptimizerSchedule, AFractionIsOneOfTheDecay) {
  ScheduleOptions options = cosine();
  options.lr_warmup_iters = 0;
  options.lr_warmup_fraction = 0.015625;
  EXPECT_EQ(schedule_of(options).lr.warmup_steps, 25);  // of 1600 samples: one and a half iterations
  EXPECT_DOUBLE_EQ(schedule_of(options).lr.at(16), 1e-3 * 16 / 25);
}

TEST(ScheduleState, HasMegatronsNamesAndComesBack) {
  EXPECT_EQ(named_values(saved(cosine())), (NamedValues{{"max_lr", 1e-3},
                                                        {"min_lr", 1e-4},
                                                        {"lr_warmup_steps", 160.0},
                                                        {"num_steps", 640.0},
                                                        {"lr_decay_style", "cosine"},
                                                        {"lr_decay_steps", 1600.0},
                                                        {"start_wd", 0.1},
                                                        {"end_wd", 0.1},
                                                        {"wd_incr_style", "constant"},
                                                        {"wd_incr_steps", 1600.0},
                                                        {"init_lr", 0.0}}));
  NamedValues more = named_values(saved(wsd()));
  EXPECT_EQ(more.at("wsd_decay_steps"), NamedValues::mapped_type(320.0));
  EXPECT_EQ(more.at("lr_wsd_decay_style"), NamedValues::mapped_type("minus_sqrt"));
  more["something_newer"] = 1.0;
  EXPECT_EQ(schedule_state(more), saved(wsd()));
}

TEST(ScheduleState, RefusesWhatNoScheduleHas) {
  const auto refusal = [](const std::string& name, const std::optional<NamedValues::mapped_type>& value) {
    NamedValues values = named_values(saved(wsd()));
    values.erase(name);
    if (value) values.emplace(name, *value);
    return message_of<ConfigError>([&] { schedule_state(values); });
  };
  EXPECT_EQ(refusal("max_lr", {}), "the saved schedule has no 'max_lr'; it is not one of Megatron's");
  EXPECT_EQ(refusal("max_lr", "high"), "the saved schedule's 'max_lr' is a text; it is a number");
  EXPECT_EQ(refusal("max_lr", -1.0), "the saved schedule's 'max_lr' is -1; it is a number of at least 0");
  EXPECT_EQ(refusal("min_lr", 0.5), "the saved schedule's 'min_lr' is 0.5, above its 'max_lr' 0.001");
  EXPECT_EQ(refusal("init_lr", 0.5), "the saved schedule's 'init_lr' is 0.5, above its 'max_lr' 0.001");
  EXPECT_EQ(refusal("num_steps", 1.5), "the saved schedule's 'num_steps' is 1.5; it is a whole number from 0 to 2^53");
  EXPECT_EQ(refusal("lr_decay_steps", 0.0),
            "the saved schedule's 'lr_decay_steps' is 0; it is a whole number from 1 to 2^53");
  EXPECT_EQ(refusal("lr_warmup_steps", 1600.0),
            "the saved schedule's 'lr_warmup_steps' is 1600, not below its 'lr_decay_steps' 1600");
  EXPECT_EQ(refusal("wsd_decay_steps", 1601.0),
            "the saved schedule's 'wsd_decay_steps' is 1601, above its 'lr_decay_steps' 1600");
  EXPECT_EQ(refusal("lr_decay_style", 1.0), "the saved schedule's 'lr_decay_style' is a number; it is a text");
  EXPECT_EQ(refusal("lr_decay_style", "steps"),
            "the saved schedule's 'lr_decay_style' is steps; it is one of constant, linear, cosine, "
            "inverse-square-root, WSD");
}

// --- A run that goes on

std::string refusal(const ScheduleState& state, const ScheduleOptions& options) {
  return message_of<ConfigError>([&] { continued_schedule(state, options); });
}

std::string in_frame(const std::string& difference) {
  return "the schedule differs from the checkpoint: " + difference +
         "; give the checkpoint's values, or add --override-opt_param-scheduler to go on with the command line's or "
         "--use-checkpoint-opt_param-scheduler to go on with the checkpoint's";
}

TEST(ContinuedSchedule, OfTheSameFlagsIsTheSame) {
  EXPECT_EQ(continued_schedule(saved(cosine()), cosine()), schedule_of(cosine()));
  EXPECT_EQ(continued_schedule(saved(wsd()), wsd()), schedule_of(wsd()));
}

TEST(ContinuedSchedule, NamesTheFlagAndBothValues) {
  const auto changed = [](const std::function<void(ScheduleOptions&)>& change, const ScheduleOptions& from) {
    ScheduleOptions options = from;
    change(options);
    return refusal(saved(from), options);
  };
  EXPECT_EQ(changed([](ScheduleOptions& o) { o.lr = 2e-3; }, cosine()),
            in_frame("--lr is 0.001 in the checkpoint and 0.002 here"));
  EXPECT_EQ(changed([](ScheduleOptions& o) { o.min_lr = 0; }, cosine()),
            in_frame("--min-lr is 0.0001 in the checkpoint and 0 here"));
  EXPECT_EQ(changed([](ScheduleOptions& o) { o.lr_decay_style = LrDecayStyle::kLinear; }, cosine()),
            in_frame("--lr-decay-style is cosine in the checkpoint and linear here"));
  EXPECT_EQ(changed([](ScheduleOptions& o) { o.lr_decay_iters = 50; }, cosine()),
            in_frame("--lr-decay-iters is 100 iterations of 16 samples in the checkpoint and 50 iterations of 16 "
                     "samples here"));
  EXPECT_EQ(changed([](ScheduleOptions& o) { o.lr_warmup_iters = 5; }, cosine()),
            in_frame("--lr-warmup-iters is 10 iterations of 16 samples in the checkpoint and 5 iterations of 16 "
                     "samples here"));
  EXPECT_EQ(changed([](ScheduleOptions& o) { o.lr_warmup_init = 1e-6; }, cosine()),
            in_frame("--lr-warmup-init is 0 in the checkpoint and 1e-06 here"));
  EXPECT_EQ(changed([](ScheduleOptions& o) { o.lr_wsd_decay_iters = 10; }, wsd()),
            in_frame("--lr-wsd-decay-iters is 20 iterations of 16 samples in the checkpoint and 10 iterations of 16 "
                     "samples here"));
  EXPECT_EQ(changed([](ScheduleOptions& o) { o.lr_wsd_decay_style = WsdDecayStyle::kCosine; }, wsd()),
            in_frame("--lr-wsd-decay-style is minus_sqrt in the checkpoint and cosine here"));
  EXPECT_EQ(changed([](ScheduleOptions& o) { o.weight_decay = 0.2; }, cosine()),
            in_frame("--weight-decay is 0.1 in the checkpoint and 0.2 here"));
  EXPECT_EQ(changed([](ScheduleOptions& o) { o.start_weight_decay = 0.02; }, wsd()),
            in_frame("--start-weight-decay is 0.01 in the checkpoint and 0.02 here"));
  EXPECT_EQ(changed([](ScheduleOptions& o) { o.weight_decay_incr_style = WeightDecayIncrStyle::kCosine; }, wsd()),
            in_frame("--weight-decay-incr-style is linear in the checkpoint and cosine here"));
  EXPECT_EQ(changed([](ScheduleOptions& o) { o.train_iters = 200; }, wsd()),
            in_frame("--train-iters is 100 iterations of 16 samples in the checkpoint and 200 iterations of 16 samples "
                     "here"));
}

TEST(ContinuedSchedule, NamesAllThatDiffersAndCountsSamplesWhereTheRunDoes) {
  ScheduleOptions options = cosine();
  options.lr = 2e-3;
  options.train_samples = options.lr_decay_samples = 1600;
  options.lr_warmup_samples = 100;
  EXPECT_EQ(refusal(saved(cosine()), options),
            in_frame("--lr is 0.001 in the checkpoint and 0.002 here; --lr-warmup-samples is 160 samples in the "
                     "checkpoint and 100 samples here"));
  options = cosine();
  options.global_batch_size = 48;  // another batch is another schedule
  EXPECT_EQ(refusal(saved(cosine()), options),
            in_frame("--lr-warmup-iters is 160 samples in the checkpoint and 10 iterations of 48 samples here; "
                     "--lr-decay-iters is 1600 samples in the checkpoint and 100 iterations of 48 samples here"));
}

TEST(ContinuedSchedule, WhatHasNoEffectMayDiffer) {
  ScheduleOptions constant = cosine();
  constant.lr_decay_style = LrDecayStyle::kConstant;
  ScheduleOptions longer = constant;
  longer.train_iters = longer.lr_decay_iters = 500;  // wd_incr_steps too
  longer.min_lr = 0;
  EXPECT_EQ(continued_schedule(saved(constant), longer), schedule_of(longer));
}

TEST(ContinuedSchedule, OneOfTwoFlagsDecides) {
  ScheduleOptions options = wsd();
  options.lr = 2e-3;
  options.override_opt_param_scheduler = true;
  EXPECT_EQ(continued_schedule(saved(cosine()), options), schedule_of(options));
  options.override_opt_param_scheduler = false;
  options.use_checkpoint_opt_param_scheduler = true;
  EXPECT_EQ(continued_schedule(saved(wsd()), options), schedule_of(wsd()));
  OptimizerSchedule of_cosine = schedule_of(cosine());
  of_cosine.lr.wsd_style = WsdDecayStyle::kMinusSqrt;  // what the checkpoint does not know, and nobody reads
  of_cosine.lr.wsd_decay_steps = 320;
  EXPECT_EQ(continued_schedule(saved(cosine()), options), of_cosine);
}

TEST(ContinuedSchedule, ACheckpointOfMegatronDoesNotKnowTheLastPartOfWsd) {
  ScheduleState state = saved(wsd());
  state.init_lr.reset();
  state.wsd_decay_steps.reset();
  state.lr_wsd_decay_style.reset();
  EXPECT_EQ(continued_schedule(state, wsd()), schedule_of(wsd()));
  ScheduleOptions options = cosine();
  options.use_checkpoint_opt_param_scheduler = true;
  EXPECT_EQ(refusal(state, options),
            "--use-checkpoint-opt_param-scheduler: the checkpoint's lr_decay_style is WSD, and it does not say how "
            "long its last part is; give --lr-decay-style WSD with --lr-wsd-decay-iters, at most 100 iterations of 16 "
            "samples");
}

}  // namespace
}  // namespace loom::train
