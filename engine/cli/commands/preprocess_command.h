// The preprocess command: a bar on a terminal, else lines of progress; dropped records as warnings, and a line for
// each pair at its end. Private to engine/cli.
//
// Stopped  by one of launch::kStopSignals between two batches: no output remains.
// Errors   ConfigError for the user's input; launch::Interrupted.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <ostream>

#include "engine/cli/bytes_progress.h"
#include "engine/cli/words/preprocess_arguments.h"
#include "engine/text/preprocess/preprocess.h"

namespace loom::cli {

void run_preprocess(const PreprocessArguments& arguments, std::ostream& out);

// Progress: the bar of BytesProgress on a terminal, else a line whenever a multiple of log_interval records is
// passed, at most one a second:
//   1200 records, 3.1 of 8.0 MB
class PreprocessProgressLines {
 public:
  PreprocessProgressLines(std::ostream& out, bool terminal, std::int64_t log_interval,
                          std::function<std::int64_t()> clock);

  void update(const data::PreprocessProgress& progress);
  std::int64_t elapsed_ns() const { return bar_.elapsed_ns(); }

 private:
  std::ostream& out_;
  const bool terminal_;
  const std::int64_t log_interval_;
  const std::function<std::int64_t()> clock_;
  BytesProgress bar_;
  std::int64_t lines_due_ = 0;  // multiples of log_interval passed so far
  std::int64_t line_ns_;
};

}  // namespace loom::cli
