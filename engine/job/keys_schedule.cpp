#include "engine/job/rows.h"

namespace loom::job {

void add_schedule_keys(std::vector<Key>& table) {
  add_under(
      "Batch and schedule",
      {
          whole<&Job::schedule, &Schedule::micro_batch_size>("--micro-batch-size", 1,
                                                             "Sequences in one forward and backward pass of a rank")
              .is_common()
              .saved(),
          whole<&Job::schedule, &Schedule::global_batch_size>("--global-batch-size", 1,
                                                              "Sequences in a step, over all ranks")
              .is_common()
              .saved()
              .from("micro-batch-size x ranks"),
          whole<&Job::schedule, &Schedule::train_iters>("--train-iters", 1, "Optimizer steps").is_common().saved(),
          whole<&Job::schedule, &Schedule::train_samples>(
              "--train-samples", 1, "Sequences to train on, rounded down to whole batches; replaces --train-iters")
              .saved()
              .from("none"),
          whole<&Job::schedule, &Schedule::train_epochs>(
              "--train-epochs", 1, "Passes over the training data, each in whole batches; replaces --train-iters")
              .saved()
              .from("none"),
          numbers<&Job::schedule, &Schedule::iterations_to_skip>(
              "--iterations-to-skip", 1, "Iterations, counted from 1, whose data is consumed without training")
              .saved(),
          real<&Job::schedule, &Schedule::lr>("--lr", kAboveZero, "Peak learning rate").is_common().saved(),
          real<&Job::schedule, &Schedule::min_lr>("--min-lr", kFromZero, "Learning rate at the end of the decay")
              .saved(),
          choice<&Job::schedule, &Schedule::lr_decay_style>("--lr-decay-style",
                                                            "How the learning rate falls after the warm-up")
              .saved(),
          whole<&Job::schedule, &Schedule::lr_decay_iters>("--lr-decay-iters", 1,
                                                           "Steps until --min-lr is reached, including the warm-up")
              .saved()
              .from("train-iters"),
          whole<&Job::schedule, &Schedule::lr_decay_samples>("--lr-decay-samples", 1,
                                                             "As --lr-decay-iters, in samples; with --train-samples")
              .saved()
              .from("train-samples"),
          whole<&Job::schedule, &Schedule::lr_warmup_iters>("--lr-warmup-iters", 0,
                                                            "Warm-up steps of the learning rate")
              .saved(),
          whole<&Job::schedule, &Schedule::lr_warmup_samples>("--lr-warmup-samples", 0,
                                                              "As --lr-warmup-iters, in samples; with --train-samples")
              .saved(),
          real<&Job::schedule, &Schedule::lr_warmup_fraction>("--lr-warmup-fraction", kBelowOne,
                                                              "Warm-up as a share of --lr-decay-iters")
              .saved(),
          real<&Job::schedule, &Schedule::lr_warmup_init>("--lr-warmup-init", kFromZero,
                                                          "Learning rate at the start of the warm-up")
              .saved(),
          choice<&Job::schedule, &Schedule::lr_wsd_decay_style>("--lr-wsd-decay-style",
                                                                "How the learning rate falls in the decay phase of WSD")
              .saved(),
          whole<&Job::schedule, &Schedule::lr_wsd_decay_iters>("--lr-wsd-decay-iters", 1,
                                                               "Steps of the decay phase of WSD")
              .saved()
              .from("none"),
          whole<&Job::schedule, &Schedule::lr_wsd_decay_samples>(
              "--lr-wsd-decay-samples", 1, "As --lr-wsd-decay-iters, in samples; with --train-samples")
              .saved()
              .from("none"),
          toggle<&Job::schedule, &Schedule::override_opt_param_scheduler>(
              "--override-opt-param-scheduler",
              "When resuming, use the schedule of the command line instead of the checkpoint's"),
          toggle<&Job::schedule, &Schedule::use_checkpoint_opt_param_scheduler>(
              "--use-checkpoint-opt-param-scheduler",
              "When resuming, use the schedule of the checkpoint instead of the command line's"),
      },
      table);
}

}  // namespace loom::job
