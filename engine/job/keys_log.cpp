#include "engine/job/rows.h"

namespace loom::job {

void add_log_keys(std::vector<Key>& table) {
  add_under(
      "Log",
      {
          choice<&Job::log, &Log::log_format>(
              "--log-format",
              "Lines and a progress bar of our own, or the line of Megatron-LM's training_log, of the last rank"),
          whole<&Job::log, &Log::log_interval>("--log-interval", 1, "Steps between printed lines").of_this_rank(),
          toggle<&Job::log, &Log::log_throughput>(
              "--log-throughput",
              "TFLOP/s of a rank, in Megatron's line and, with --log-timers-to-tensorboard, in TensorBoard"),
          toggle<&Job::log, &Log::log_params_norm>(
              "--log-params-norm", "Norm of the parameters after a step, in Megatron's line and in TensorBoard"),
          toggle<&Job::log, &Log::check_for_spiky_loss>(
              "--check-for-spiky-loss", "Warn of a loss 10 times the largest of the first 100 steps or more"),
          toggle<&Job::log, &Log::check_for_large_grads>("--check-for-large-grads", "The same for the gradient norm"),
      },
      table);
  add_under(
      "TensorBoard (the last rank writes)",
      {
          text<&Job::log, &Log::tensorboard_dir>("--tensorboard-dir", "DIR",
                                                 "Folder of an event file with the scalars of the run"),
          whole<&Job::log, &Log::tensorboard_log_interval>("--tensorboard-log-interval", 1, "Steps between scalars"),
          whole<&Job::log, &Log::tensorboard_queue_size>(
              "--tensorboard-queue-size", 1,
              "Scalars that wait at most before they are written, two minutes at the longest"),
          toggle<&Job::log, &Log::log_timers_to_tensorboard>(
              "--log-timers-to-tensorboard",
              "Time of a step, every --log-interval steps; with --log-throughput the throughput too"),
          toggle<&Job::log, &Log::log_memory_to_tensorboard>("--log-memory-to-tensorboard",
                                                             "Memory of the emulated device"),
          toggle<&Job::log, &Log::log_loss_scale_to_tensorboard>(
              "--log-loss-scale-to-tensorboard,!--no-log-loss-scale-to-tensorboard",
              "The loss scale; on unless --no-... is given"),
          toggle<&Job::log, &Log::log_world_size_to_tensorboard>("--log-world-size-to-tensorboard",
                                                                 "The number of ranks"),
          toggle<&Job::log, &Log::log_validation_ppl_to_tensorboard>("--log-validation-ppl-to-tensorboard",
                                                                     "The perplexity on the held-out data"),
      },
      table);
  add_under(
      "Profile (ui.perfetto.dev opens it)",
      {
          toggle<&Job::profile, &Profile::enabled>(
              "--profile", "Write a trace of what ran, and a summary; the flags below need this one")
              .not_in_plan()
              .of_this_rank(),
          whole<&Job::profile, &Profile::step_start>("--profile-step-start", 0, "First step collected, counted from 0")
              .not_in_plan()
              .of_this_rank(),
          whole<&Job::profile, &Profile::step_end>("--profile-step-end", 1, "Step before which collection ends")
              .not_in_plan()
              .of_this_rank(),
          choice<&Job::profile, &Profile::level>(
              "--profile-level", "Streams and collectives; every kernel too; also shapes, waits and memory")
              .not_in_plan()
              .of_this_rank(),
          toggle<&Job::profile, &Profile::with_cpu>("--profile-with-cpu", "What the host does too")
              .not_in_plan()
              .of_this_rank(),
          toggle<&Job::profile, &Profile::with_stack>("--profile-with-stack", "The modules that each item ran for")
              .not_in_plan()
              .of_this_rank(),
          toggle<&Job::profile, &Profile::with_memory>("--profile-with-memory", "Memory by category, also below level2")
              .not_in_plan()
              .of_this_rank(),
          toggle<&Job::profile, &Profile::record_shapes>("--profile-record-shapes",
                                                         "Shapes of matrix products, also below level2")
              .not_in_plan()
              .of_this_rank(),
          text<&Job::profile, &Profile::save_path>("--profile-save-path", "DIR", "Where it is written")
              .not_in_plan()
              .of_this_rank(),
          numbers<&Job::profile, &Profile::ranks>("--profile-ranks", 0, "Ranks collected, one or more")
              .not_in_plan()
              .of_this_rank(),
          text<&Job::profile, &Profile::device>(
              "--profile-device", "PROFILE",
              "Virtual time on this device beside the wall clock's: a file, or a name in configs/devices")
              .not_in_plan()
              .of_this_rank(),
      },
      table);
}

}  // namespace loom::job
