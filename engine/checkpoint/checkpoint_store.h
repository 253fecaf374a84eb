// CheckpointStore: writes checkpoints into a folder (checkpoint_folder.h) so that none is ever lost.
//
// Steps     begin({10}) makes FOLDER/.iter_0000010.tmp-XXXX; the ranks write their files there; commit() flushes them,
//           writes the manifest, flushes the directory, renames it to iter_0000010, flushes the folder, and only then
//           writes the tracker. A run that ends anywhere in between leaves the tracker and every older checkpoint as
//           they were; what it left under a name with a dot goes at the next begin().
// Again     an iter_0000010 that is there already is exchanged for the new one in one step, then removed. Where the
//           file system cannot exchange (some network file systems), it is moved aside first, and there is a moment in
//           which the iteration is under neither name.
// Files     belong into the directory itself; commit() flushes each to disk. A rank of another machine flushes its own
//           before it says that it is done (save_parts.h does).
// Owner     one process of the job has the store, and the job holds the folder's io::OutputLock: whatever else lies
//           there under a name with a dot is of a run that is dead.
// Links     are not followed: iter_0000010, release or the tracker as a link or as the wrong kind of file is refused.
// Threads   one thread at a time; begin() and commit() may be on different threads.
// Errors    ConfigError for what lies in the way; Error with path and reason when the file system fails (disk full).
//           What was there before stays. Only abandon() or the next begin() remove what a failed save wrote.
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

// What commit() has just done.
enum class CommitStep : std::uint8_t { kFilesFlushed, kManifestWritten, kRenamed, kTrackerWritten, kFormerRemoved };

class CheckpointStore {
 public:
  // Makes the folder. ConfigError when that cannot be done.
  explicit CheckpointStore(std::filesystem::path folder);

  const CheckpointFolder& folder() const { return folder_; }

  // The directory into which the files of a checkpoint are to be written. One that was begun before and not committed
  // begins anew, in another directory.
  std::filesystem::path begin(const CheckpointId& id);
  // Makes the checkpoint of the manifest visible, and the tracker name it. Precondition: it was begun. Error when a
  // file is not there as the manifest says. After an Error: abandon().
  void commit(const Manifest& manifest);
  // Removes what was written of a checkpoint that was begun; does nothing when there is none, or it is committed.
  void abandon(const CheckpointId& id);

  // Removes all whole own iterations up to the tracker's but the newest `keep_last`, at least 1; gives what it removed,
  // newest first. Each is renamed before it is deleted, so that half of one can never be chosen. `release`, foreign and
  // torn ones, and those newer than the tracker's stay.
  std::vector<std::int64_t> remove_old(std::int64_t keep_last);

  // For tests: called after every step of commit(); what it throws passes out of commit().
  void watch_commits(std::function<void(CommitStep)> watch) { watch_ = std::move(watch); }

 private:
  void remove_leftovers() const;
  void refuse_what_is_in_the_way(const CheckpointId& id) const;
  void report(CommitStep step) const;

  CheckpointFolder folder_;
  std::map<std::string, std::string> begun_;  // name of a checkpoint's directory -> its name until it is committed
  std::function<void(CommitStep)> watch_;
};

}  // namespace loom::checkpoint
