// CheckpointStore: writes checkpoints into a folder (checkpoint_folder.h) without ever losing one.
//
// Steps     begin({10}) makes FOLDER/.iter_0000010.tmp-XXXX; the ranks write their files there; commit() flushes them,
//           writes the manifest, flushes the directory, renames it to iter_0000010, flushes the folder, and only then
//           writes the tracker. A run that ends anywhere in between leaves the tracker and every older checkpoint
//           unchanged; the next begin() removes its leftovers, whose names begin with a dot.
// Again     an existing iter_0000010 is exchanged for the new one in one step, then removed. If the
//           file system cannot exchange (some network file systems), it is moved aside first; for a moment the
//           iteration then has neither name.
// Files     belong into the directory itself; commit() flushes each to disk. A rank of another machine flushes its own
//           before it reports that it is done (save_parts.h does).
// Owner     one process of the job has the store, and the job holds the folder's io::OutputLock: every other entry
//           whose name begins with a dot belongs to a dead run.
// Links     are not followed: iter_0000010, release or the tracker as a link or as the wrong kind of file is refused.
// Threads   one thread at a time; begin() and commit() may be on different threads.
// Errors    ConfigError for an obstacle in the folder; Error with path and reason if the file system fails (disk full).
//           Earlier contents stay. Only abandon() or the next begin() remove the files of a failed save.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "engine/checkpoint/checkpoint_folder.h"
#include "engine/checkpoint/manifest.h"

namespace loom::checkpoint {

// The step that commit() has just done.
enum class CommitStep : std::uint8_t { kFilesFlushed, kManifestWritten, kRenamed, kTrackerWritten, kFormerRemoved };

class CheckpointStore {
 public:
  // Makes the folder. ConfigError if that fails.
  explicit CheckpointStore(std::filesystem::path folder);

  const CheckpointFolder& folder() const { return folder_; }

  // Returns the directory into which the files of a checkpoint are written. If one was begun and not committed,
  // it begins anew, in another directory.
  std::filesystem::path begin(const CheckpointId& id);
  // Makes the checkpoint of the manifest visible, and names it in the tracker. Precondition: it was begun. Error if a
  // file does not match the manifest. After an Error: abandon().
  void commit(const Manifest& manifest);
  // Removes the files of a checkpoint that was begun; does nothing if there is none, or it is committed.
  void abandon(const CheckpointId& id);

  // Removes all whole own iterations up to the tracker's except the newest `keep_last`, at least 1; returns them,
  // newest first. Each is renamed before it is deleted, so that half of one can never be chosen. `release`, foreign and
  // torn checkpoints, and those newer than the tracker's stay.
  std::vector<std::int64_t> remove_old(std::int64_t keep_last);

  // For tests: called after every step of commit(); its exceptions pass out of commit().
  void watch_commits(std::function<void(CommitStep)> watch) { watch_ = std::move(watch); }

 private:
  void remove_leftovers() const;
  void refuse_what_is_in_the_way(const CheckpointId& id) const;
  void report(CommitStep step) const;

  CheckpointFolder folder_;
  std::map<std::string, std::string> begun_;  // name of a checkpoint's directory -> its name until commit
  std::function<void(CommitStep)> watch_;
};

}  // namespace loom::checkpoint
