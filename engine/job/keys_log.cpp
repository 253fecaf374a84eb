#include "engine/job/rows.h"

namespace loom::job {

void add_log_keys(std::vector<Key>& table) {
  add_under(
      "Log",
      {
          choice<&Job::log, &Log::log_format>(
              "--log-format",
              "short: lines and a progress bar; megatron: the line of Megatron-LM's training_log, from the last rank"),
          choice<&Job::log, &Log::log_level>("--log-level", "Messages on standard error from this level on (info)")
              .of_this_rank()
              .not_in_plan(),
          whole<&Job::log, &Log::log_interval>("--log-interval", 1, "Steps between printed lines").of_this_rank(),
          toggle<&Job::log, &Log::log_throughput>(
              "--log-throughput",
              "Log TFLOP/s per rank, in Megatron's line, after a table of the first step's bytes by axis, and, with "
              "--log-timers-to-tensorboard, in TensorBoard"),
          toggle<&Job::log, &Log::log_params_norm>(
              "--log-params-norm", "Log the norm of the parameters, in Megatron's line and in TensorBoard"),
          toggle<&Job::log, &Log::log_num_zeros_in_grad>(
              "--log-num-zeros-in-grad",
              "Log how many elements of the gradients are 0, in metrics.jsonl, Megatron's line and TensorBoard"),
          toggle<&Job::log, &Log::log_norms_by_layer>(
              "--log-norms-by-layer",
              "Log the norms of gradients and parameters of each layer, in metrics.jsonl and TensorBoard"),
          toggle<&Job::log, &Log::log_tps>("--log-tps",
                                           "Log the mean number of tokens per sample, as a figure of the loss"),
          toggle<&Job::log, &Log::check_for_spiky_loss>(
              "--check-for-spiky-loss", "Warn if the loss is at least 10 times the largest of the first 100 steps"),
          toggle<&Job::log, &Log::check_for_large_grads>(
              "--check-for-large-grads",
              "Warn if the gradient norm is at least 10 times the largest of the first 100 steps"),
      },
      table);
  add_under(
      "TensorBoard (the last rank writes)",
      {
          text<&Job::log, &Log::tensorboard_dir>("--tensorboard-dir", "DIR", "Folder for TensorBoard's event file"),
          whole<&Job::log, &Log::tensorboard_log_interval>("--tensorboard-log-interval", 1, "Steps between scalars"),
          whole<&Job::log, &Log::tensorboard_queue_size>("--tensorboard-queue-size", 1,
                                                         "Scalars to buffer before writing, for two minutes at most"),
          toggle<&Job::log, &Log::log_timers_to_tensorboard>(
              "--log-timers-to-tensorboard",
              "Log the step time every --log-interval steps, and with --log-throughput the throughput"),
          toggle<&Job::log, &Log::log_memory_to_tensorboard>("--log-memory-to-tensorboard",
                                                             "Log the memory of the emulated device"),
          toggle<&Job::log, &Log::log_loss_scale_to_tensorboard>(
              "--log-loss-scale-to-tensorboard,!--no-log-loss-scale-to-tensorboard",
              "Log the loss scale; on by default"),
          toggle<&Job::log, &Log::log_world_size_to_tensorboard>("--log-world-size-to-tensorboard",
                                                                 "Log the number of ranks"),
          toggle<&Job::log, &Log::log_validation_ppl_to_tensorboard>("--log-validation-ppl-to-tensorboard",
                                                                     "Log the perplexity on the held-out data"),
      },
      table);
  add_under(
      "Profile (ui.perfetto.dev opens it)",
      {
          toggle<&Job::profile, &Profile::enabled>("--profile",
                                                   "Write a trace and a summary; the flags below need this one")
              .not_in_plan()
              .of_this_rank(),
          whole<&Job::profile, &Profile::step_start>("--profile-step-start", 0, "First step to collect, counted from 0")
              .not_in_plan()
              .of_this_rank(),
          whole<&Job::profile, &Profile::step_end>("--profile-step-end", 1, "Collection ends before this step")
              .not_in_plan()
              .of_this_rank(),
          choice<&Job::profile, &Profile::level>(
              "--profile-level",
              "level0: streams and collectives; level1: also kernels; level2: also shapes, waits and memory")
              .not_in_plan()
              .of_this_rank(),
          toggle<&Job::profile, &Profile::with_cpu>("--profile-with-cpu", "Also collect the host's activity")
              .not_in_plan()
              .of_this_rank(),
          toggle<&Job::profile, &Profile::with_stack>("--profile-with-stack", "Record the module that issued each item")
              .not_in_plan()
              .of_this_rank(),
          toggle<&Job::profile, &Profile::with_memory>("--profile-with-memory",
                                                       "Collect memory by category at any level")
              .not_in_plan()
              .of_this_rank(),
          toggle<&Job::profile, &Profile::record_shapes>("--profile-record-shapes",
                                                         "Record the shapes of matrix products at any level")
              .not_in_plan()
              .of_this_rank(),
          text<&Job::profile, &Profile::save_path>("--profile-save-path", "DIR", "Folder for the profile")
              .not_in_plan()
              .of_this_rank(),
          numbers<&Job::profile, &Profile::ranks>("--profile-ranks", 0, "Ranks to collect")
              .not_in_plan()
              .of_this_rank(),
          text<&Job::profile, &Profile::device>(
              "--profile-device", "PROFILE",
              "Also show virtual time on this device: a profile's file, or a name in configs/devices")
              .not_in_plan()
              .of_this_rank(),
          text<&Job::profile, &Profile::mm_tool>("--mm-tool", "FILE",
                                                 "MindSpeed-MM's tools.json, whose profile stands for these flags")
              .without_help_in_plan()
              .of_this_rank()
              .not_in_users_programs(),
      },
      table);
}

}  // namespace loom::job
