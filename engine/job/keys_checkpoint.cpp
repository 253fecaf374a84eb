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
              "What --save writes. torch_dcp: checkpoints of torch.distributed.checkpoint; hf: the model in Hugging Face's format after the last step. Default: hf, or torch_dcp with a flag below that saves")
              .without_help_in_plan(),
          text<&Job::checkpoint, &Checkpoint::load>(
              "--load", "DIR", "Checkpoint to resume from, or a folder: its newest complete checkpoint")
              .is_common()
              .without_help_in_plan()
              .by_content(),
          whole<&Job::checkpoint, &Checkpoint::ckpt_step>("--ckpt-step", 0, "Load this iteration from --load")
              .without_help_in_plan(),
          toggle<&Job::checkpoint, &Checkpoint::no_load_optim>("--no-load-optim",
                                                               "Do not load the optimizer and the schedule")
              .without_help_in_plan(),
          toggle<&Job::checkpoint, &Checkpoint::no_load_rng>(
              "--no-load-rng", "Do not load the state of the random numbers; start from --seed")
              .without_help_in_plan(),
          toggle<&Job::checkpoint, &Checkpoint::finetune>("--finetune",
                                                          "Load only the weights and start at iteration 0")
              .without_help_in_plan(),
          toggle<&Job::checkpoint, &Checkpoint::exit_on_missing_checkpoint>(
              "--exit-on-missing-checkpoint", "Exit if --load has no checkpoint, instead of starting from scratch")
              .without_help_in_plan(),
          choice<&Job::checkpoint, &Checkpoint::dist_ckpt_strictness>(
              "--dist-ckpt-strictness",
              "Mismatched names in a checkpoint: an error, an error only for names of the model, or a warning")
              .without_help_in_plan(),
          toggle<&Job::checkpoint, &Checkpoint::no_save_optim>("--no-save-optim",
                                                               "Do not save the optimizer and the schedule")
              .without_help_in_plan(),
          toggle<&Job::checkpoint, &Checkpoint::no_save_rng>("--no-save-rng",
                                                             "Do not save the state of the random numbers")
              .without_help_in_plan(),
          toggle<&Job::checkpoint, &Checkpoint::async_save>(
              "--async-save", "Save in the background; training waits only for a copy in memory")
              .without_help_in_plan(),
          whole<&Job::checkpoint, &Checkpoint::keep_last>("--keep-last", 1,
                                                          "Remove all but the newest N checkpoints after a save")
              .without_help_in_plan(),
          choice<&Job::checkpoint, &Checkpoint::on_save_error>(
              "--on-save-error", "What to do when a checkpoint cannot be written (disk full); the previous one stays")
              .without_help_in_plan(),
      },
      table);
  add_under(
      "Saving and ending",
      {
          whole<&Job::schedule, &Schedule::save_interval>("--save-interval", 1, "Steps between saves")
              .from("after the last step only"),
          whole<&Job::schedule, &Schedule::save_epochs>("--save-epochs", 1,
                                                        "Passes over the training data between saves")
              .from("none"),
          whole<&Job::schedule, &Schedule::exit_interval>(
              "--exit-interval", 1, "Exit after a step whose number this divides; saves with --save")
              .from("never"),
          real<&Job::schedule, &Schedule::exit_duration_in_mins>(
              "--exit-duration-in-mins", kFromZero,
              "Exit after the first step past this time; saves with --save; 0 = never"),
          toggle<&Job::schedule, &Schedule::exit_signal_handler>(
              "--exit-signal-handler",
              "Exit with status 0 instead of 128 + signal on SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2; both save with --save"),
      },
      table);
}

}  // namespace loom::job
