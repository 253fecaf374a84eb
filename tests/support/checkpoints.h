// Checkpoints of runs that were ended, beside those of runs that were not.
#pragma once

#include <cstdlib>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/support/files.h"

namespace loom::test {

// How often a run is killed.
inline int kills() {
  const char* given = std::getenv("SHARDLOOM_KILLS");
  return given == nullptr ? 4 : std::atoi(given);
}

// The checkpoint of `iteration` in both folders: the same files, byte for byte.
inline void expect_same_checkpoint(const std::filesystem::path& one, const std::filesystem::path& other,
                                   std::int64_t iteration) {
  const std::string name = fmt::format("iter_{:07d}", iteration);
  EXPECT_EQ(read_file(one / "latest_checkpointed_iteration.txt"), fmt::to_string(iteration));
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(other / name)) {
    const auto file = entry.path().filename();
    EXPECT_TRUE(read_file(one / name / file) == read_file(entry.path())) << file;
    ++files;
  }
  EXPECT_GE(files, 3);
}

}  // namespace loom::test
