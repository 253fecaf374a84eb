// CheckpointFolder: the checkpoints of a folder in Megatron's layout, and the choice of the one a run begins with.
//
// Layout    FOLDER/latest_checkpointed_iteration.txt, the tracker: the text of an iteration, or "release".
//           FOLDER/iter_0000010/ (seven digits or more) and FOLDER/release/. Names that begin with a dot are being
//           written or removed (checkpoint_store.h) and are ignored.
// Own       a directory with shardloom_manifest.json (manifest.h): every file of it can be checked against its size and
//           checksum.
// Foreign   a directory without it that has .metadata, which PyTorch writes last: accepted unchecked, and reported so.
// Torn      everything else: a file that is missing, shorter, or different; an invalid manifest; a link or a file in
//           place of a directory. A torn checkpoint is never chosen.
// Links     the folder itself may be one; links in it are not followed.
// Memory    does not depend on the sizes that files claim: they are compared, never allocated.
// Threads   safe from any number of threads.
// Errors    ConfigError for an invalid tracker, for a requested checkpoint that is not usable, and for a folder that
//           cannot be read. A problem of a single checkpoint is not an error but its Verdict.
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
  // One line for kForeign and kTorn, without the path: the finding, and the manifest's value.
  std::string reason;

  bool usable() const { return kind != Kind::kTorn; }
};

// kSizes costs a stat a file; kChecksums reads every byte.
enum class VerifyDepth : std::uint8_t { kSizes, kChecksums };

// The checkpoint to begin with, and the ones passed over before it.
struct Choice {
  struct Passed {
    std::filesystem::path path;
    std::string reason;
  };

  CheckpointId id;
  std::filesystem::path path;
  Verdict verdict;             // whole or foreign
  std::vector<Passed> passed;  // newest first; one line of the log each
};

// How often a folder in which another run saves is read again: its checkpoints may have moved in the meantime.
inline constexpr int kMostLooks = 50;

class CheckpointFolder {
 public:
  // The folder need not exist: then it has no checkpoints and no tracker.
  explicit CheckpointFolder(std::filesystem::path folder);

  const std::filesystem::path& path() const { return folder_; }
  std::filesystem::path path_of(const CheckpointId& id) const;
  std::filesystem::path tracker_path() const;

  // The iterations that have an entry in the folder, newest first, whatever the entry is.
  std::vector<std::int64_t> iterations() const;
  // None if there is no tracker file.
  std::optional<CheckpointId> tracker() const;

  Verdict verify(const CheckpointId& id, VerifyDepth depth) const;

  // The checkpoint to begin with; none if the folder has no finished checkpoint.
  //
  // Requested   exactly that iteration, else an error with its verdict.
  // Tracker     the one it names; if that is torn, the newest usable iteration below it. Newer ones were not finished,
  //             or belong to an abandoned run. `release` has nothing below it. Throws if none is usable.
  // No tracker  the newest usable iteration: the first save of a run may have ended before its tracker.
  // Pruned      if a saving run changes the tracker meanwhile, and a checkpoint was passed over: looks again.
  std::optional<Choice> choose(std::optional<std::int64_t> requested, VerifyDepth depth) const;

 private:
  // From the checkpoint that the tracker names downwards.
  std::optional<Choice> look(const std::optional<CheckpointId>& named, VerifyDepth depth,
                             std::vector<Choice::Passed>& passed) const;
  std::optional<Choice> choose_from(const std::vector<CheckpointId>& ids, VerifyDepth depth,
                                    std::vector<Choice::Passed>& passed) const;
  Choice exactly(std::int64_t iteration, VerifyDepth depth) const;

  std::filesystem::path folder_;
};

}  // namespace loom::checkpoint
