// make_indexed DIR: pairs .bin/.idx written by us, for indexed_reads.py: every integer dtype, and one merged of two.
//
// Each has 2000 sequences of 0 to 300 tokens in documents of 0 to 3 sequences, drawn by a fixed seed.
#include <filesystem>
#include <fmt/format.h>
#include <limits>
#include <random>

#include "engine/formats/indexed/indexed_writer.h"

namespace {

using loom::io::IndexedDtype;
using loom::io::IndexedWriter;

struct Ids {
  std::int32_t least;
  std::int32_t most;
};

Ids ids_of(IndexedDtype dtype) {
  switch (dtype) {
    case IndexedDtype::kU8:
      return {0, 255};
    case IndexedDtype::kI8:
      return {-128, 127};
    case IndexedDtype::kI16:
      return {-32768, 32767};
    case IndexedDtype::kU16:
      return {0, 65535};
    default:
      return {std::numeric_limits<std::int32_t>::min(), std::numeric_limits<std::int32_t>::max()};
  }
}

void write_random(const std::filesystem::path& prefix, IndexedDtype dtype, unsigned seed) {
  std::mt19937 draw(seed);
  const auto [least, most] = ids_of(dtype);
  std::uniform_int_distribution<std::int32_t> id(least, most);
  IndexedWriter writer(prefix, dtype);
  std::vector<std::int32_t> tokens;
  while (writer.sequence_count() < 2000) {
    for (auto left = draw() % 4; left > 0; --left) {
      tokens.resize(draw() % 301);
      for (auto& token : tokens) token = id(draw);
      writer.add_sequence(tokens);
    }
    writer.end_document();
  }
  writer.commit();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    fmt::print(stderr, "usage: make_indexed DIR\n");
    return 2;
  }
  const std::filesystem::path folder(argv[1]);
  std::filesystem::create_directories(folder);
  for (const auto dtype : {IndexedDtype::kU8, IndexedDtype::kI8, IndexedDtype::kI16, IndexedDtype::kI32,
                           IndexedDtype::kI64, IndexedDtype::kU16}) {
    write_random(folder / loom::io::name_of(dtype), dtype, 1);
  }
  IndexedWriter merged(folder / "merged", IndexedDtype::kI32);
  write_random(folder / "int32_b", IndexedDtype::kI32, 2);
  for (const char* name : {"int32", "int32_b"}) merged.add_all(loom::io::IndexedDataset(folder / name));
  merged.commit();
  return 0;
}
