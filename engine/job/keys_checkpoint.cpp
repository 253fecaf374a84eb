#include "engine/job/rows.h"

namespace loom::job {

void add_checkpoint_keys(std::vector<Key>& table) {
  add_under(
      "Checkpoints",
      {
          one_of<&Job::checkpoint, &Checkpoint::ckpt_format_word>(
              "--ckpt-format",
              [] {
                return Texts{"torch_dcp", "hf", "torch_dist"};
              },
              "What --save writes: checkpoints of torch.distributed.checkpoint, or Hugging Face's files of the model after the last step; torch_dcp where a flag below that saves is given, else hf")
              .without_help_in_plan(),
          text<&Job::checkpoint, &Checkpoint::load>(
              "--load", "DIR", "Checkpoints to go on from: the newest whole one of a folder, or a single one")
              .is_common()
              .without_help_in_plan()
              .by_content(),
          whole<&Job::checkpoint, &Checkpoint::ckpt_step>("--ckpt-step", 0,
                                                          "The iteration of --load to take, and no other")
              .without_help_in_plan(),
          toggle<&Job::checkpoint, &Checkpoint::no_load_optim>("--no-load-optim",
                                                               "Begin with a fresh optimizer and schedule")
              .without_help_in_plan(),
          toggle<&Job::checkpoint, &Checkpoint::no_load_rng>("--no-load-rng", "Keep --seed and begin its numbers anew")
              .without_help_in_plan(),
          toggle<&Job::checkpoint, &Checkpoint::finetune>("--finetune",
                                                          "Take the weights alone, and begin at iteration 0")
              .without_help_in_plan(),
          toggle<&Job::checkpoint, &Checkpoint::exit_on_missing_checkpoint>(
              "--exit-on-missing-checkpoint", "End where --load has no checkpoint, instead of beginning anew")
              .without_help_in_plan(),
          choice<&Job::checkpoint, &Checkpoint::dist_ckpt_strictness>(
              "--dist-ckpt-strictness",
              "Names that do not fit the model: an error, an error unless they are beside it, or a warning")
              .without_help_in_plan(),
          toggle<&Job::checkpoint, &Checkpoint::no_save_optim>("--no-save-optim",
                                                               "Leave the optimizer and the schedule out")
              .without_help_in_plan(),
          toggle<&Job::checkpoint, &Checkpoint::no_save_rng>("--no-save-rng", "Leave the random numbers' position out")
              .without_help_in_plan(),
          toggle<&Job::checkpoint, &Checkpoint::async_save>(
              "--async-save", "Write behind the training, which waits for a copy in memory only")
              .without_help_in_plan(),
          whole<&Job::checkpoint, &Checkpoint::keep_last>("--keep-last", 1,
                                                          "Remove all but the newest N checkpoints after a save")
              .without_help_in_plan(),
          choice<&Job::checkpoint, &Checkpoint::on_save_error>(
              "--on-save-error", "When a checkpoint cannot be written (disk full); the former one stays")
              .without_help_in_plan(),
      },
      table);
  add_under(
      "Saving and ending",
      {
          whole<&Job::schedule, &Schedule::save_interval>("--save-interval", 1, "Steps between saves")
              .from("after the last step only"),
          whole<&Job::schedule, &Schedule::exit_interval>(
              "--exit-interval", 1, "End after a step whose number this divides; saves with --save")
              .from("never"),
          real<&Job::schedule, &Schedule::exit_duration_in_mins>(
              "--exit-duration-in-mins", kFromZero,
              "End after the first step later than this; saves with --save; 0 = never"),
          toggle<&Job::schedule, &Schedule::exit_signal_handler>(
              "--exit-signal-handler",
              "SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 end the run with status 0, not 128 + signal; either way it saves with --save"),
      },
      table);
}

}  // namespace loom::job
