// Small numbers in runs: equal ones counted, others packed bit by bit (RLE, the hybrid). Private to engine/formats.
//
// Cost     numbers are unpacked on request: a run may claim more numbers than memory holds.
// Errors   BadBytes.
// Source   github.com/apache/parquet-format, Encodings.md.
#pragma once

#include <cstdint>
#include <string_view>

#include "engine/formats/parquet/parquet_bytes.h"

namespace loom::io {

// The `width` bits (0 to 64) that begin at bit `at`, lowest first. Precondition: they are there.
inline std::uint64_t bits_at(std::string_view bytes, std::uint64_t at, int width) {
  std::uint64_t value = 0;
  for (int done = 0; done < width;) {
    const std::uint64_t bit = at + static_cast<std::uint64_t>(done);
    const int offset = static_cast<int>(bit % 8);
    const std::uint64_t byte = static_cast<unsigned char>(bytes[bit / 8]);
    value |= (byte >> offset) << done;
    done += 8 - offset;
  }
  return width < 64 ? value & ((std::uint64_t{1} << width) - 1) : value;
}

class BitRuns {
 public:
  // Numbers of `width` bits, 0 to 32.
  BitRuns(std::string_view bytes, int width) : bytes_(bytes), width_(width) {
    if (width > 32) bad_bytes("numbers of {} bits; at most 32 are read", width);
  }

  std::uint32_t next() {
    while (left_ == 0) begin_run();
    --left_;
    if (!packed_) return value_;
    const auto value = static_cast<std::uint32_t>(bits_at(run_, at_, width_));
    at_ += static_cast<std::uint64_t>(width_);
    return value;
  }

 private:
  void begin_run() {
    const std::uint64_t head = bytes_.varint();
    packed_ = (head & 1) != 0;
    packed_ ? begin_packed(head >> 1) : begin_equal(head >> 1);
  }

  void begin_packed(std::uint64_t groups_of_8) {
    if (groups_of_8 >> 32) bad_bytes("a run of {} times 8 numbers", groups_of_8);
    run_ = bytes_.take(groups_of_8 * static_cast<std::uint64_t>(width_));
    at_ = 0;
    left_ = groups_of_8 * 8;
  }

  void begin_equal(std::uint64_t count) {
    left_ = count;
    std::uint64_t value = 0;
    for (int bit = 0; bit < width_; bit += 8) value |= std::uint64_t{bytes_.byte()} << bit;
    if (value >> width_) bad_bytes("{} in {} bits", value, width_);
    value_ = static_cast<std::uint32_t>(value);
  }

  ByteCursor bytes_;
  int width_;
  bool packed_ = false;
  std::uint64_t left_ = 0;  // of the run
  std::uint32_t value_ = 0;
  std::string_view run_;
  std::uint64_t at_ = 0;  // bit of the run
};

}  // namespace loom::io
