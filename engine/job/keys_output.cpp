#include "engine/job/rows.h"

namespace loom::job {

void add_output_keys(std::vector<Key>& table) {
  add_under(
      "Output",
      {
          text<&Job::save>("--save", "DIR", "Where the trained model, or checkpoints, are written; not given: nowhere")
              .in_short_help(),
          choice<&Job::save_dtype>("--save-dtype",
                                   "Type of the saved weights; as-loaded: bf16 where they were loaded as bf16"),
          text<&Job::metrics_path>("--metrics-path", "FILE", "One JSON line a step")
              .from("metrics.jsonl in --save or here")
              .of_this_rank(),
          text<&Job::report>("--report", "FILE", "Write an HTML page with charts of the run or plan; it works offline"),
          text<&Job::report_device>(
              "--report-device", "PROFILE",
              "Whose virtual time the page shows, and --smart-swap plans with: a device profile's file, or a name in configs/devices")
              .not_in_plan(),
          whole<&Job::eval_interval>("--eval-interval", 1, "Steps between evaluations"),
          whole<&Job::eval_iters>("--eval-iters", 0, "Batches of one evaluation; 0 = no evaluation"),
          toggle<&Job::skip_train>("--skip-train", "Evaluate the held-out data and end; no step is taken")
              .not_in_plan(),
          whole<&Job::sample_bytes>("--sample-bytes", 0, "Length of the text generated after training; 0 = none")
              .not_in_plan()
              .not_in_users_programs(),
          text<&Job::prompt>("--prompt", "TEXT", "What that text continues").not_in_plan().not_in_users_programs(),
      },
      table);
}

}  // namespace loom::job
