// WorkerGroup: the workers of one node, from one start to their ends.
//
// Threads  one, which lives as long as the launcher (worker.h).
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "engine/launcher/log_files.h"
#include "engine/launcher/message.h"
#include "engine/launcher/options.h"
#include "engine/launcher/output.h"
#include "engine/launcher/worker.h"

namespace loom::launcher {

// What a group needs of its agent, and does not own.
struct GroupContext {
  const Options& options;
  comm::tcp::Address meeting;
  LogFiles& logs;
  Output& output;
  std::vector<std::vector<int>> cores;  // by local rank; empty: not bound
};

class WorkerGroup {
 public:
  // Starts all. Error where one cannot be started; those before it are killed.
  WorkerGroup(const GroupContext& context, const Assigned& assigned);

  // Looks at all. The failures since the last look.
  std::vector<Failure> look();
  bool running() const;
  // They have all ended with 0. After look().
  bool succeeded() const;
  void send(int signal) const;

 private:
  struct Entry {
    std::unique_ptr<Worker> worker;
    std::optional<Output::Id> err;   // its stream, if it goes through the agent
    std::filesystem::path err_file;  // else its file, if there is one
    bool seen = false;               // its end was looked at
    bool well = false;
  };
  struct Outlets {
    std::unique_ptr<Descriptor> out_pipe, err_pipe;
    std::shared_ptr<Descriptor> out_file, err_file;
  };

  void start(const GroupContext& context, int local_rank);
  std::filesystem::path open_outlets(const GroupContext& context, int local_rank, Entry& entry, Outlets& outlets);
  void open_torchrun(const GroupContext& context, int local_rank, const std::filesystem::path& folder, Entry& entry,
                     Outlets& outlets);
  void open_msrun(const GroupContext& context, int local_rank, Entry& entry, Outlets& outlets);
  std::string last_lines(const Entry& entry) const;

  const Assigned assigned_;
  const std::string host_;
  Output& output_;
  std::vector<Entry> entries_;
};

}  // namespace loom::launcher
