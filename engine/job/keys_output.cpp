#include "engine/job/rows.h"

namespace loom::job {

void add_output_keys(std::vector<Key>& table) {
  add_under(
      "Output",
      {
          text<&Job::checkpoint, &Checkpoint::save>("--save", "DIR",
                                                    "Folder for the trained model or the checkpoints; default: none")
              .is_common(),
          choice<&Job::checkpoint, &Checkpoint::save_dtype>(
              "--save-dtype", "Dtype of the saved weights; as-loaded: bf16 if they were loaded as bf16"),
          text<&Job::log, &Log::metrics_path>("--metrics-path", "FILE", "File with one JSON line per step")
              .from("metrics.jsonl in --save or here")
              .of_this_rank(),
          text<&Job::report, &Report::path>("--report", "FILE",
                                            "Write an HTML page with charts of the run or plan; it works offline"),
          text<&Job::report, &Report::device>(
              "--report-device", "PROFILE",
              "Device profile for the virtual time on the page and for --smart-swap: a file, or a name in configs/devices")
              .not_in_plan(),
          text<&Job::report, &Report::memory_snapshot>(
              "--memory-snapshot", "FILE",
              "Write a step's allocations for pytorch.org/memory_viz: of a run rank 0's second step, of a plan its step"),
          whole<&Job::schedule, &Schedule::eval_interval>("--eval-interval", 1, "Steps between evaluations"),
          whole<&Job::schedule, &Schedule::eval_iters>("--eval-iters", 0, "Batches per evaluation; 0 = no evaluation"),
          toggle<&Job::schedule, &Schedule::skip_train>("--skip-train", "Evaluate the held-out data without training")
              .not_in_plan(),
          whole<&Job::sample, &Sample::sample_bytes>("--sample-bytes", 0,
                                                     "Length of the text generated after training; 0 = none")
              .not_in_plan()
              .not_in_users_programs(),
          text<&Job::sample, &Sample::prompt>("--prompt", "TEXT", "Prompt for the text generated after training")
              .not_in_plan()
              .not_in_users_programs(),
      },
      table);
}

}  // namespace loom::job
