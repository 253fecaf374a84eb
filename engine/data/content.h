// What data consists of, for ranks that are processes to compare before they train on it.
//
// Cost      one pass over the bytes up to 1 GiB (about a second); of more, 16 KiB out of every equal stretch, 1 GiB in
//           all. A difference of one byte outside of those is not seen; one of length always is.
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

// Of the files that byte_data_loaders() reads for these paths (byte_dataset.h). ConfigError for what cannot be read.
Content content_of(std::span<const std::filesystem::path> paths);

}  // namespace loom::data
