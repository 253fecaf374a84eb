// LogOptions: what a run reports of its steps, on the terminal and to TensorBoard.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "engine/core/log.h"

namespace loom::log {

// Lines of our own with a progress bar, or the line of Megatron-LM's training_log (megatron_log.h).
enum class LogFormat : std::uint8_t { kShort, kMegatron };

// The scalars of TensorBoard (tensorboard.h); flags and meanings are Megatron-LM's.
struct TensorBoardOptions {
  std::optional<std::filesystem::path> tensorboard_dir;  // none = no event file
  std::int64_t tensorboard_log_interval = 1;             // steps between scalars
  std::int64_t tensorboard_queue_size = 1000;            // the most scalars that wait to be written
  bool log_memory_to_tensorboard = false;
  bool log_timers_to_tensorboard = false;
  bool log_loss_scale_to_tensorboard = true;
  bool log_world_size_to_tensorboard = false;
  bool log_validation_ppl_to_tensorboard = false;
};

struct LogOptions : TensorBoardOptions {
  std::filesystem::path metrics_path;  // filled in: default metrics.jsonl in the folder of --save or the current one
  LogFormat log_format = LogFormat::kShort;
  std::optional<LogLevel> log_level;   // of messages on stderr; none: that of SPDLOG_LEVEL
  std::int64_t log_interval = 10;      // steps between printed lines
  bool log_throughput = false;         // TFLOP/s of a rank, in Megatron's line and, with timers, in TensorBoard
  bool log_params_norm = false;        // L2 norm after a step, in Megatron's line and in TensorBoard
  bool log_num_zeros_in_grad = false;  // likewise, and in metrics.jsonl
  bool log_norms_by_layer = false;     // in TensorBoard and in metrics.jsonl
  bool log_tps = false;                // tokens per sample, among the figures of the loss
  bool check_for_spiky_loss = false;   // a warning (spikes.h)
  bool check_for_large_grads = false;
};

}  // namespace loom::log
