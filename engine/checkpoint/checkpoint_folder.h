// CheckpointFolder: the checkpoints of a folder, as Megatron lays them out, and which of them a run may begin with.
//
// Layout    FOLDER/latest_checkpointed_iteration.txt, the tracker: the text of an iteration, or "release".
//           FOLDER/iter_0000010/ (seven digits or more) and FOLDER/release/. Names that begin with a dot are on their
//           way in or out (checkpoint_store.h) and are never looked at.
// Own       a directory with shardloom_manifest.json (manifest.h): every file of it can be held to its size and
//           checksum.
// Foreign   a directory without it that has .metadata, which PyTorch writes last: taken as it is, and said so.
// Torn      everything else: a file that is missing, shorter, other; a manifest that is none; a link or a file in the
//           place of a directory. A torn checkpoint is never chosen.
// Links     the folder itself may be one; nothing in it is followed.
// Memory    does not depend on what a file claims: sizes are compared, never allocated.
// Threads   safe from any number of threads.
// Errors    ConfigError for a tracker that is none, for a checkpoint that was asked for and cannot be had, and where a
//           folder cannot be read. What is wrong with a single checkpoint is no error but its Verdict.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "engine/checkpoint/manifest.h"

namespace loom::checkpoint {

struct Verdict {
  enum class Kind : std::uint8_t { kWhole, kForeign, kTorn };

  Kind kind = Kind::kTorn;
  // One line for kForeign and kTorn, without the path: what was found, and what the manifest says.
  std::string reason;

  bool usable() const { return kind != Kind::kTorn; }
};

// kSizes costs a stat a file; kChecksums reads every byte.
enum class VerifyDepth : std::uint8_t { kSizes, kChecksums };

// A checkpoint to begin with, and what was passed over on the way to it.
struct Choice {
  struct Passed {
    std::filesystem::path path;
    std::string reason;
  };

  CheckpointId id;
  std::filesystem::path path;
  Verdict verdict;             // whole or foreign
  std::vector<Passed> passed;  // newest first; a line of the log each
};

// How often a folder is looked at in which another run saves: what was there may be at another place by then.
inline constexpr int kMostLooks = 50;

class CheckpointFolder {
 public:
  // The folder need not be there: then it has no checkpoints and no tracker.
  explicit CheckpointFolder(std::filesystem::path folder);

  const std::filesystem::path& path() const { return folder_; }
  std::filesystem::path path_of(const CheckpointId& id) const;
  std::filesystem::path tracker_path() const;

  // The iterations that have an entry in the folder, newest first, whatever the entry is.
  std::vector<std::int64_t> iterations() const;
  // None when there is no tracker file.
  std::optional<CheckpointId> tracker() const;

  Verdict verify(const CheckpointId& id, VerifyDepth depth) const;

  // The checkpoint to begin with; none when the folder has nothing that was ever finished.
  //
  // Requested   exactly that iteration, else an error with its verdict.
  // Tracker     what it names; when that is torn, the newest usable iteration below it. Newer ones were not finished,
  //             or belong to a run that was left. `release` has nothing below it. Throws when none is usable.
  // No tracker  the newest usable iteration: the first save of a run may have ended before its tracker.
  // Pruned      where the tracker changes meanwhile, by a run that saves, and something is passed over: looks again.
  std::optional<Choice> choose(std::optional<std::int64_t> requested, VerifyDepth depth) const;

 private:
  // From what the tracker names down.
  std::optional<Choice> look(const std::optional<CheckpointId>& named, VerifyDepth depth,
                             std::vector<Choice::Passed>& passed) const;
  std::optional<Choice> choose_from(const std::vector<CheckpointId>& ids, VerifyDepth depth,
                                    std::vector<Choice::Passed>& passed) const;
  Choice exactly(std::int64_t iteration, VerifyDepth depth) const;

  std::filesystem::path folder_;
};

}  // namespace loom::checkpoint
