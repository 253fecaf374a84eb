// A summary of data, which ranks that are processes compare before they train on it.
//
// Cost      one pass over the bytes up to 1 GiB (about a second); beyond that, 16 KiB out of every equal stretch, 1 GiB
//           in all. A difference of one byte outside of these is not seen; a difference of length always is.
// Threads   any.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

namespace loom::data {

struct Content {
  std::int64_t files = 0;
  std::int64_t bytes = 0;
  std::uint64_t digest = 0;  // of lengths and bytes, in the order of the files' paths; not of the paths
};

// Summarizes the files that byte_data_loaders() reads for these paths (byte_dataset.h). ConfigError: one is unreadable.
Content content_of(std::span<const std::filesystem::path> paths);

}  // namespace loom::data
