// Finds the checkpoint that a user's path means: a checkpoint's own directory, or a folder of checkpoints.
//
// Itself   a directory with .metadata, or with safetensors files and no checkpoints below it.
// Folder   the checkpoint that the tracker names; without a tracker, the only checkpoint.
// Threads  any.
// Errors   ConfigError: there is none, or several and no tracker; the text lists them.
#pragma once

#include <filesystem>

#include "engine/checkpoint/checkpoint_folder.h"
#include "engine/core/error.h"

namespace loom::checkpoint {

struct FoundCheckpoint {
  std::filesystem::path path;
  CheckpointId id;  // from the directory's name; release if it gives none
};

// `flag` begins the messages ("--load-dir"). Reads nothing of the checkpoint.
FoundCheckpoint find_checkpoint(const std::filesystem::path& given, const std::string& flag);

// ConfigError with the next step for a folder that is not a checkpoint of torch.distributed.checkpoint.
void refuse_other_kind(const std::filesystem::path& given, const std::string& flag);

// The result of `read` on the checkpoint that `given` means. Another run that saves there may remove it meanwhile: if
// `read` fails and `given` means another checkpoint by then, that one is read.
template <class Read>
auto read_found(const std::filesystem::path& given, const std::string& flag, const Read& read) {
  refuse_other_kind(given, flag);
  for (int looks = 1;; ++looks) {
    const FoundCheckpoint found = find_checkpoint(given, flag);
    try {
      return read(found);
    } catch (const Error&) {
      if (looks == kMostLooks || find_checkpoint(given, flag).path == found.path) throw;
    }
  }
}

}  // namespace loom::checkpoint
