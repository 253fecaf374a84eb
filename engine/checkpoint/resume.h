// Resume: the checkpoint that a run begins with, agreed on and read by all ranks.
//
// Chosen    by rank 0 (checkpoint_folder.h), so that ranks whose views of a shared folder differ begin alike. A folder
//           that has .metadata itself is a single checkpoint.
// Damage    if any rank finds damage while it reads a checkpoint (a checksum, a missing piece), all ranks pass over it
//           with a warning and read the next older one; for a checkpoint requested by number it is an error.
// Gone      if another run removes or replaces the checkpoint while a rank reads it, all ranks look again.
// Threads   the rank's host thread; collective.
// Errors    ConfigError, the same on every rank.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>

#include "engine/comm/process_group.h"
#include "engine/formats/dcp/dcp_folder.h"

namespace loom::checkpoint {

struct Resumed {
  std::filesystem::path path;
  std::optional<std::int64_t> iteration;  // from the folder's name; none: `release`, or a single checkpoint
  bool is_release = false;                // weights without a run
};

// Reads one rank's part. An exception other than io::FileDamage ends the run, unless the checkpoint is gone. Called
// again for every candidate.
using ReadCheckpoint = std::function<void(const io::DcpFolder& checkpoint, const Resumed& from)>;

// None if the folder has no checkpoint.
std::optional<Resumed> resume(const std::filesystem::path& folder, std::optional<std::int64_t> requested,
                              comm::ProcessGroup& everyone, const ReadCheckpoint& read);

}  // namespace loom::checkpoint
