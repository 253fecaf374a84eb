// CheckpointOptions: what a run saves, and how it starts. Names and meanings are Megatron's where it has them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "engine/checkpoint/loader.h"

namespace loom::train {

// What --save writes.
enum class CheckpointFormat : std::uint8_t {
  kHf,         // after the last step, a folder of Hugging Face files with the model alone
  kTorchDcp,   // checkpoints, from which a run resumes (docs/checkpoints.md)
  kTorchDist,  // Megatron's own; neither written nor read: only for planning a run of Megatron
};

// The type of the floating weights that --save writes. kAsLoaded: weights loaded as bf16 or fp16 are written as such,
// all others as they were trained.
enum class SaveDType : std::uint8_t { kAsLoaded, kFp32, kBf16 };

enum class OnSaveError : std::uint8_t { kStop, kContinue };

struct CheckpointOptions {
  std::optional<std::filesystem::path> save;  // folder of the trained model or of checkpoints; none = not saved
  SaveDType save_dtype = SaveDType::kAsLoaded;
  CheckpointFormat ckpt_format = CheckpointFormat::kHf;
  std::optional<std::filesystem::path> load;  // a folder of checkpoints, or a checkpoint
  std::optional<std::int64_t> ckpt_step;      // this iteration and no other
  bool no_save_optim = false;
  bool no_save_rng = false;
  bool no_load_optim = false;
  bool no_load_rng = false;
  bool finetune = false;  // the weights alone; iteration 0
  bool exit_on_missing_checkpoint = false;
  checkpoint::Strictness dist_ckpt_strictness = checkpoint::Strictness::kRaiseAll;
  bool async_save = false;
  std::optional<std::int64_t> keep_last;  // whole checkpoints that stay; none: all
  OnSaveError on_save_error = OnSaveError::kStop;
  std::optional<std::string> ckpt_format_word;  // --ckpt-format as it was written
};

}  // namespace loom::train
