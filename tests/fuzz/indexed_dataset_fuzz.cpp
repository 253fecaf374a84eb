// Pairs .bin/.idx: once a pair is open, every token of every sequence can be read, and writing it again gives its
// bytes. An input is u2 length of the .idx, the .idx, the .bin.
#include <cstring>
#include <fstream>
#include <iterator>
#include <vector>

#include "engine/formats/indexed/indexed_dataset.h"
#include "engine/formats/indexed/indexed_writer.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace loom;

void read_all(const io::IndexedDataset& pair) {
  std::vector<std::int32_t> tokens;
  for (std::int64_t i = 0; i < pair.sequence_count(); ++i) {
    tokens.resize(static_cast<std::size_t>(pair.length(i)));
    pair.read(i, 0, tokens);
    if (pair.has_modes()) (void)pair.mode(i);
  }
}

std::string bytes_of(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

void write_again(const io::IndexedDataset& pair) {
  using Modes = io::IndexedWriter::Modes;
  const auto again = fuzz::scratch_folder() / "again";
  io::IndexedWriter writer(again, pair.dtype(), pair.has_modes() ? Modes::kOnePerSequence : Modes::kNone);
  writer.add_all(pair);
  writer.commit();
  for (const auto& path_of : {io::idx_path, io::bin_path}) {
    if (bytes_of(path_of(again)) != bytes_of(path_of(pair.prefix())))
      fuzz::found("written again", path_of(again).string());
  }
}

}  // namespace

LOOM_FUZZ_TARGET(indexed_dataset) {
  std::uint16_t idx_bytes = 0;
  if (size < sizeof(idx_bytes)) return 0;
  std::memcpy(&idx_bytes, data, sizeof(idx_bytes));
  const std::string_view rest = fuzz::text_of(data + sizeof(idx_bytes), size - sizeof(idx_bytes));
  const std::size_t cut = std::min<std::size_t>(idx_bytes, rest.size());
  return fuzz::answered_or_refused([&] {
    fuzz::written("pair.bin", rest.substr(cut));
    const auto prefix = fuzz::written("pair.idx", rest.substr(0, cut)).replace_extension();
    const io::IndexedDataset pair(prefix);
    read_all(pair);
    write_again(pair);
  });
}
