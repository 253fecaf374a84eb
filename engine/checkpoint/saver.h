// Saver: writes the checkpoints of a run, each rank its part, in the layout of torch.distributed.checkpoint.
//
// Files     every rank with something to write makes __<rank>_0.distcp; rank 0 puts .metadata beside them, and the
//           store (checkpoint_store.h) makes the whole visible at once.
// Check     before the save is visible, every rank reads back its files' checksums, and rank 0 reads .metadata and the
//           beginning of each part.
// Async     save() copies this rank's boxes and returns; a thread writes the copies. A second save waits for the first.
//           The copies are reused by the next save, so a rank never holds more than one set of them.
// Failure   a save that fails (disk full) leaves the previous checkpoint whole. Every rank learns of it at the next
//           save() or finish(), rank 0 at the next poll(): an Error with stop_on_error, else a warning, and the run
//           continues.
// Order     save() and finish() are collective.
// Threads   the rank's host thread; one thread of its own while a save is in the background.
// Errors    Error: the first failing rank's text, the same on every rank.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "engine/checkpoint/state.h"
#include "engine/comm/process_group.h"

namespace loom::checkpoint {

struct SaverOptions {
  std::filesystem::path folder;
  bool async = false;
  bool stop_on_error = true;
  std::optional<std::int64_t> keep_last;                         // at least 1; none: all
  std::chrono::milliseconds patience{std::chrono::minutes(10)};  // of rank 0, for the other ranks' parts
  int tensor_ranks = 1;                                          // that share matrices: shown in the report
  int pipeline_ranks = 1;                                        // of a pipeline: shown too
};

class Saver {
 public:
  // Prints rank 0's report of a save, in the words of Megatron's log.
  using Say = std::function<void(const std::string& line)>;

  Saver(SaverOptions options, std::shared_ptr<comm::ProcessGroup> everyone, Say say);
  // Waits for a save in the background, and drops its result.
  ~Saver();

  // Writes the state as iteration `iteration`. Its values are taken from rank 0.
  void save(std::int64_t iteration, const State& state);
  // Waits until the last save is on disk.
  void finish();
  // Not collective, does not wait: rank 0 throws if a save in the background has failed meanwhile.
  void poll();

  // The iteration of the last save that is known to be on disk.
  std::optional<std::int64_t> last_saved() const { return last_saved_; }

 private:
  class Work;

  std::filesystem::path begin(std::int64_t iteration);
  void failed(const std::string& text);

  const SaverOptions options_;
  const std::shared_ptr<comm::ProcessGroup> everyone_;
  const Say say_;
  std::unique_ptr<Work> work_;
  bool in_flight_ = false;  // a save whose end the ranks have not exchanged yet
  std::optional<std::int64_t> last_saved_;
};

}  // namespace loom::checkpoint
