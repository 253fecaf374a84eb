// Pairs .bin/.idx of tests: sequences of given lengths, whose tokens count up from 100.
#pragma once

#include <filesystem>
#include <numeric>
#include <vector>

#include "engine/formats/indexed/indexed_writer.h"

namespace loom::test {

// Each sequence a document of its own; token t of the stream is 100 + t.
inline std::filesystem::path write_pair(const std::filesystem::path& prefix, const std::vector<int>& lengths,
                                        io::IndexedDtype dtype = io::IndexedDtype::kI32) {
  io::IndexedWriter writer(prefix, dtype);
  std::int32_t next = 100;
  for (const int length : lengths) {
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(length));
    std::iota(tokens.begin(), tokens.end(), next);
    next += length;
    writer.add_sequence(tokens);
    writer.end_document();
  }
  writer.commit();
  return prefix;
}

// `count` sequences of one length.
inline std::filesystem::path write_even_pair(const std::filesystem::path& prefix, int count, int length,
                                             io::IndexedDtype dtype = io::IndexedDtype::kI32) {
  return write_pair(prefix, std::vector<int>(static_cast<std::size_t>(count), length), dtype);
}

}  // namespace loom::test
