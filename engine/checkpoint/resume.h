// Resume: the checkpoint that a run begins with, agreed on and read by all ranks.
//
// Chosen    by rank 0 (checkpoint_folder.h), so that ranks whose view of a shared folder differs begin alike. A folder
//           that has .metadata itself is a checkpoint of its own.
// Damage    a checkpoint in which any rank finds damage while it reads (a checksum, a missing piece) is passed over by
//           all of them, with a warning, and the next older one is read; one that was asked for by number is an error.
// Gone      where another run removes or replaces the checkpoint while a rank reads it, all of them look again.
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
  std::optional<std::int64_t> iteration;  // by the folder's name; none: `release`, or a folder of its own
  bool is_release = false;                // the weights of no run
};

// Reads one rank's part. An exception other than io::FileDamage ends the run, unless the checkpoint is gone. Called
// again for every candidate.
using ReadCheckpoint = std::function<void(const io::DcpFolder& checkpoint, const Resumed& from)>;

// None where the folder has no checkpoint at all.
std::optional<Resumed> resume(const std::filesystem::path& folder, std::optional<std::int64_t> requested,
                              comm::ProcessGroup& everyone, const ReadCheckpoint& read);

}  // namespace loom::checkpoint
