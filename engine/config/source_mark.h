// SourceMark: a place in the user's file, for errors.
#pragma once

#include <string>

namespace loom::config {

// Line and column count from 1. Line 0 means the file as a whole.
struct SourceMark {
  std::string file;
  int line = 0;
  int column = 0;

  // "fsdp2_config.yaml:1:16", or the bare file name.
  std::string text() const;
  bool operator==(const SourceMark&) const = default;
};

}  // namespace loom::config
