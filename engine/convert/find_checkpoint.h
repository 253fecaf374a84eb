// Which checkpoint a path means that a person gave: a checkpoint's own directory, or a folder of checkpoints.
//
// Itself   a directory with .metadata, or with safetensors files and no checkpoints below it.
// Folder   the checkpoint that the tracker names; without a tracker the only one there is.
// Threads  any.
// Errors   ConfigError: nothing is there, or several are and no tracker says which; the text lists them.
#pragma once

#include <filesystem>

#include "engine/checkpoint/checkpoint_folder.h"
#include "engine/core/error.h"

namespace loom::checkpoint {

struct FoundCheckpoint {
  std::filesystem::path path;
  CheckpointId id;  // as the directory's name says it; release where it says none
};

// `flag` begins the messages ("--load-dir"). Nothing of the checkpoint is read.
FoundCheckpoint find_checkpoint(const std::filesystem::path& given, const std::string& flag);

// ConfigError with the next step for a folder that is no checkpoint of torch.distributed.checkpoint.
void refuse_other_kind(const std::filesystem::path& given, const std::string& flag);

// What `read` makes of the checkpoint that `given` means. Another run that saves there may remove it meanwhile: where
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
