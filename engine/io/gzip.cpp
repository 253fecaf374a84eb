#include "engine/io/gzip.h"

#include <algorithm>
#include <isa-l/igzip_lib.h>
#include <limits>
#include <memory>

#include "engine/core/error.h"
#include "engine/io/mapped_file.h"

namespace loom::io {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{1} << 20;

void check_size(std::size_t bytes, std::size_t most_bytes, const std::string& file) {
  if (bytes > most_bytes) config_error("{}: holds more than {} bytes of text, which is the limit", file, most_bytes);
}

std::string unpacked(std::span<const std::byte> bytes, std::size_t most_bytes, const std::string& file) {
  check_size(bytes.size(), std::numeric_limits<std::uint32_t>::max(), file);
  const auto state = std::make_unique<inflate_state>();
  isal_inflate_init(state.get());
  state->crc_flag = ISAL_GZIP;
  state->next_in = const_cast<std::uint8_t*>(reinterpret_cast<const std::uint8_t*>(bytes.data()));  // NOLINT: only read
  state->avail_in = static_cast<std::uint32_t>(bytes.size());
  std::string text;
  while (state->block_state != ISAL_BLOCK_FINISH) {
    const std::size_t before = text.size();
    text.resize(before + kPieceBytes);
    state->next_out = reinterpret_cast<std::uint8_t*>(text.data() + before);
    state->avail_out = kPieceBytes;
    const int status = isal_inflate(state.get());
    const std::size_t written = kPieceBytes - state->avail_out;
    text.resize(before + written);
    if (status != ISAL_DECOMP_OK) config_error("{}: is damaged: gzip cannot be unpacked behind byte {}", file, before);
    check_size(text.size(), most_bytes, file);
    if (written == 0 && state->block_state != ISAL_BLOCK_FINISH) {
      config_error("{}: is cut off: its gzip data ends before the end of the text", file);
    }
  }
  return text;
}

}  // namespace

bool is_gzip(std::span<const std::byte> bytes) {
  return bytes.size() >= 2 && bytes[0] == std::byte{0x1f} && bytes[1] == std::byte{0x8b};
}

std::string text_of_file(const std::filesystem::path& path, std::size_t most_bytes) {
  const MappedFile file(path);
  const std::span<const std::byte> bytes = file.bytes();
  if (is_gzip(bytes)) return unpacked(bytes, most_bytes, path.string());
  check_size(bytes.size(), most_bytes, path.string());
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace loom::io
