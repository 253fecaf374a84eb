// ChatLines: the lines of a descriptor, typed or piped. Private to engine/talk.
//
// Line     without its end ("\n" or "\r\n"); the last one may have none. Any bytes.
// Long     a line above the limit is dropped, and read to its end.
// Threads  one.
// Errors   Error if the descriptor cannot be read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace loom::talk {

class ChatLines {
 public:
  enum class Got : std::uint8_t { kLine, kTooLong, kInterrupted, kEnd };

  ChatLines(int descriptor, std::size_t most_bytes) : descriptor_(descriptor), most_bytes_(most_bytes) {}

  // Waits for a line, or until `interrupted`, which is called ten times a second.
  Got next(std::string& line, const std::function<bool()>& interrupted);

 private:
  // Takes a line from the bytes read; false if it is incomplete.
  bool take(std::string& line, Got& got);
  // False at the end.
  bool read_more();

  const int descriptor_;
  const std::size_t most_bytes_;
  std::string read_;
  bool too_long_ = false;  // the line whose beginning was read
};

}  // namespace loom::talk
