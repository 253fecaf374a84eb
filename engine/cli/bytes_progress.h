// BytesProgress: the progress of a copy, as a bar that redraws its line on a terminal; nothing elsewhere.
// Private to engine/cli.
//
//   [========>               ] 1.2 of 3.1 GB  412 MB/s  0:04 left
//
// Threads  one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <ostream>
#include <string>

namespace loom::cli {

class BytesProgress {
 public:
  // `out` outlives it. `clock` returns nanoseconds since any fixed moment.
  BytesProgress(std::ostream& out, bool terminal, std::function<std::int64_t()> clock);
  // Ends the bar's line.
  ~BytesProgress();
  BytesProgress(const BytesProgress&) = delete;
  BytesProgress& operator=(const BytesProgress&) = delete;

  void update(std::uint64_t done_bytes, std::uint64_t all_bytes);
  std::int64_t elapsed_ns() const { return clock_() - started_ns_; }

 private:
  std::ostream& out_;
  const bool terminal_;
  const std::function<std::int64_t()> clock_;
  const std::int64_t started_ns_;
  std::int64_t drawn_ns_;
  std::size_t drawn_width_ = 0;
};

// "3.1 GB"; powers of 1000, as for disks.
std::string bytes_text(double bytes);

}  // namespace loom::cli
