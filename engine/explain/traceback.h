// Traceback: what a rank did when it failed, by the frames of Python that stand before the text of its error.
//
// Frames   `File "torch/_tensor.py", line 631, in backward`, outermost first, on lines of the same speaker; a new
//          "Traceback (most recent call last)" begins again. Frames of PyTorch say the phase, and whether FSDP worked.
// Memory   one Traceback for each speaker, of the first 65536.
// Threads  one.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace loom::explain {

// Of FSDP, when it failed.
enum class FsdpWork : std::uint8_t { kNone, kGather, kCopyOut, kReduce };

struct Traceback {
  std::string phase;  // "forward", "backward", "recompute", "optimizer"; empty: the frames do not say
  FsdpWork work = FsdpWork::kNone;

  auto operator<=>(const Traceback&) const = default;
};

class TracebackReader {
 public:
  // Any line of a log.
  void take_line(std::string_view line);
  // Of whoever wrote this line.
  Traceback of(std::string_view line) const;

 private:
  std::map<std::int64_t, Traceback> speakers_;  // by rank, else local rank; -1: lines without a prefix
};

}  // namespace loom::explain
