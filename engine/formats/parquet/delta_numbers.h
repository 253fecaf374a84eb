// DELTA_BINARY_PACKED: each number as the difference to the one before it. Private to engine/formats.
//
// Overflow  differences and numbers are counted modulo 2^64, as the format wants it.
// Cost      numbers are unpacked on request.
// Errors    BadBytes.
// Source    github.com/apache/parquet-format, Encodings.md.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "engine/formats/parquet/bit_runs.h"

namespace loom::io {

class DeltaNumbers {
 public:
  // `bytes` begin with the numbers; more may follow.
  explicit DeltaNumbers(std::string_view bytes) : bytes_(bytes) {
    const std::uint64_t block = bytes_.varint();
    miniblocks_ = bytes_.varint();
    left_ = bytes_.varint();
    value_ = static_cast<std::uint64_t>(bytes_.zigzag());
    if (block == 0 || block % 128 != 0 || block >> 32 || miniblocks_ == 0 || miniblocks_ > block ||
        block % miniblocks_ != 0 || block / miniblocks_ % 32 != 0) {
      bad_bytes("a block of {} numbers in {} parts", block, miniblocks_);
    }
    part_numbers_ = block / miniblocks_;
  }

  std::uint64_t left() const { return left_; }

  std::int64_t next() {
    if (left_ == 0) bad_bytes("fewer numbers than values");
    --left_;
    if (first_) {
      first_ = false;
    } else {
      const std::uint64_t delta = next_delta();  // may begin a block, with another least_
      value_ += least_ + delta;
    }
    return static_cast<std::int64_t>(value_);
  }

  // The bytes after the numbers. All numbers are skipped.
  std::string_view rest() {
    std::uint64_t deltas = left_ - (first_ && left_ > 0 ? 1 : 0);
    deltas -= std::min(deltas, in_part_);
    while (deltas > 0) {
      begin_part();
      deltas -= std::min(deltas, part_numbers_);
    }
    return bytes_.rest();
  }

 private:
  std::uint64_t next_delta() {
    if (in_part_ == 0) begin_part();
    --in_part_;
    const std::uint64_t value = bits_at(part_, at_, width_);
    at_ += static_cast<std::uint64_t>(width_);
    return value;
  }

  void begin_part() {
    if (widths_.empty()) {
      least_ = static_cast<std::uint64_t>(bytes_.zigzag());
      widths_ = bytes_.take(miniblocks_);
    }
    width_ = static_cast<unsigned char>(widths_.front());
    if (width_ > 64) bad_bytes("numbers of {} bits", width_);
    widths_.remove_prefix(1);
    part_ = bytes_.take(part_numbers_ / 8 * static_cast<std::uint64_t>(width_));
    at_ = 0;
    in_part_ = part_numbers_;
  }

  ByteCursor bytes_;
  std::uint64_t miniblocks_ = 0;
  std::uint64_t part_numbers_ = 0;
  std::uint64_t left_ = 0;
  std::uint64_t value_ = 0;
  bool first_ = true;

  std::uint64_t least_ = 0;  // of the block
  std::string_view widths_;  // of the block's parts that come
  int width_ = 0;
  std::string_view part_;
  std::uint64_t in_part_ = 0;
  std::uint64_t at_ = 0;
};

}  // namespace loom::io
