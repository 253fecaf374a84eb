// The files of the workers' output.
//
// torchrun  <log_dir>/<run id>_XXXXXX/attempt_<n>/<local rank>/{stdout,stderr}.log, and error.json, which the worker
//           may write. Without --log-dir, log_dir is a temporary folder, which is removed if nothing was written.
// msrun     <log_dir>/worker_<rank>.log with both streams; another name may have {ip} and {hostname}.
// Errors    Error naming the folder or the file.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "engine/core/descriptor.h"
#include "engine/launcher/message.h"
#include "engine/launcher/options.h"

namespace loom::launcher {

// What the host is called in messages and logs.
std::string host_name(const Options& options);
// A file to write, empty or at its end.
std::shared_ptr<Descriptor> open_log(const std::filesystem::path& path, bool append);

class LogFiles {
 public:
  explicit LogFiles(const Options& options);
  ~LogFiles();
  LogFiles(const LogFiles&) = delete;
  LogFiles& operator=(const LogFiles&) = delete;

  // torchrun's folder of a worker, made.
  std::filesystem::path folder_of(const Assigned& assigned, int local_rank);
  // msrun's file of a worker.
  std::filesystem::path worker_log(const Assigned& assigned, int local_rank) const;

 private:
  const Options options_;
  std::filesystem::path base_;  // of the run; made when the first folder is
};

}  // namespace loom::launcher
