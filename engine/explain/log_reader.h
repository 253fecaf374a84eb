// The error texts of a log of one rank or of many: interleaved lines, with the prefixes of launchers.
//
// Memory    bounded, whatever the size of the log: 1 MiB at a time; a line of more than 64 KiB is read as several. The
//           first 65536 different texts are kept, the others are counted.
// Lines     end with \n, and are counted by it. A \r ends a text too, as progress bars write it.
// Repeated  a text that the same rank writes again, as exceptions do, is kept once.
// Threads   any.
// Errors    ConfigError for a file that cannot be read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "engine/explain/error_report.h"
#include "engine/explain/fsdp_trace.h"

namespace loom::explain {

struct LogTexts {
  std::vector<ErrorReport> reports;  // in the order of the log
  std::int64_t lines = 0;
  std::int64_t left_out = 0;  // texts beyond those kept
  FsdpTrace trace = {};
};

class LogReader {
 public:
  // The next bytes of the log.
  void take(std::string_view bytes);
  // After the last bytes. Call once.
  LogTexts finish();

 private:
  void take_line(std::string_view line);
  void keep(ErrorReport report);

  std::string line_;  // that has no end yet
  TracebackReader tracebacks_;
  LogTexts texts_;
  std::set<ErrorReport> seen_;  // without their lines and tracebacks
};

LogTexts read_text(std::string_view text);
// "-" is standard input.
LogTexts read_log(const std::filesystem::path& path);

}  // namespace loom::explain
