// Shared segments: the memory behind ProcessGroup::share().
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "engine/comm/process_group.h"

namespace loom::comm {

// Zeroed memory of this process, on huge pages where the system gives them. Unmapped by the last owner.
std::shared_ptr<SharedSegment> make_anonymous_segment(std::size_t bytes);

// Where a process of this machine finds another's memory file.
struct MemoryFileAddress {
  std::int32_t pid = 0;
  std::int32_t descriptor = -1;
  std::int64_t inode = 0;  // proves that the descriptor still is that file
};

// A zeroed nameless file in memory; gone with the last mapping and descriptor.
class MemoryFile {
 public:
  // Throws CommError.
  explicit MemoryFile(std::size_t bytes);
  ~MemoryFile();
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  MemoryFileAddress address() const;

 private:
  int descriptor_;
};

// Maps a memory file: all who map it address the same pages. Null where this process cannot reach it.
std::shared_ptr<SharedSegment> map_memory_file(const MemoryFileAddress& address, std::size_t bytes);

}  // namespace loom::comm
