// SourceMark, Place: where something is in the user's file, for errors.
#pragma once

#include <string>

namespace loom::config {

// Line and column count from 1. Line 0 means the file as a whole.
struct SourceMark {
  std::string file;
  int line = 0;
  int column = 0;

  // "fsdp2_config.yaml:1:16", or the bare file name; escaped (shown_text.h).
  std::string text() const;
  bool operator==(const SourceMark&) const = default;
};

// Where a key is and where its value begins. They are equal for an entry of a list and for an empty value.
struct Place {
  SourceMark key;
  SourceMark value;

  bool operator==(const Place&) const = default;
};

}  // namespace loom::config
