// Output: what workers write, to the console and to files, while they run.
//
// Console  line by line, each line whole. Where a stream has a prefix ("[default0]:"), it stands before each line.
// Files    get the bytes as they are.
// Bounds   lines.h; a worker that writes faster than the console takes waits.
// Errors   Error naming the file where one cannot be written any more; it is in problem(), and the worker goes on.
// Threads  one of its own, which reads; the functions may be called by any thread.
#pragma once

#include <memory>
#include <string>

#include "engine/core/descriptor.h"

namespace loom::launcher {

class Output {
 public:
  struct Stream {
    int console = -1;                    // the console's descriptor; -1: not shown
    std::string prefix{};                // of its lines there
    std::shared_ptr<Descriptor> file{};  // none: not written
  };
  using Id = int;

  Output();
  ~Output();
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  // The end of a pipe for a worker's stream. Close it after the worker has it.
  std::unique_ptr<Descriptor> add(Stream stream, Id& id);
  // What a stream whose worker has ended said last, at most kLastLinesBytes; empty when it was drained. Waits for its
  // end, at most half a second.
  std::string last_lines(Id id);
  // Reads what is left of all streams, after the ends of their workers. Waits for it at most 2 s: a child of a worker
  // may keep a stream open, and a console may be paused.
  void drain();
  // The first file that could not be written; empty: none.
  std::string problem() const;

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
};

}  // namespace loom::launcher
