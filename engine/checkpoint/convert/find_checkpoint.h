// Which checkpoint a path means that a person gave: a checkpoint's own directory, or a folder of checkpoints.
//
// Itself   a directory with .metadata, or with safetensors files and no checkpoints below it.
// Folder   the checkpoint that the tracker names; without a tracker the only one there is.
// Threads  any.
// Errors   ConfigError: nothing is there, or several are and no tracker says which; the text lists them.
#pragma once

#include <filesystem>

#include "engine/checkpoint/manifest.h"

namespace loom::checkpoint {

struct FoundCheckpoint {
  std::filesystem::path path;
  CheckpointId id;  // as the directory's name says it; release where it says none
};

// `flag` begins the messages ("--load-dir"). Nothing of the checkpoint is read.
FoundCheckpoint find_checkpoint(const std::filesystem::path& given, const std::string& flag);

}  // namespace loom::checkpoint
