// The values of a page, one after the other, whatever their encoding. Private to engine/formats.
//
// Errors   BadBytes: fewer values than requested, an encoding that the type does not have.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "engine/formats/parquet/parquet_schema.h"

namespace loom::io {

class PageValues {
 public:
  virtual ~PageValues() = default;
  // Appends the next value to the values of its kind; returns the number of its bytes of text.
  virtual std::uint64_t append(LeafEntries& to) = 0;
};

// A chunk's dictionary: values without levels.
struct Dictionary {
  LeafEntries values;
  std::uint64_t count = 0;
};

Dictionary read_dictionary(std::string_view page, std::uint64_t count, const ParquetLeaf& leaf);

// The values that `bytes` hold, which have to stay. A dictionary only for encodings with one, where it has to stay too.
std::unique_ptr<PageValues> page_values(Encoding encoding, std::string_view bytes, const ParquetLeaf& leaf,
                                        const Dictionary* dictionary);

// Known to page_values() for some type.
bool is_known_encoding(Encoding encoding);

}  // namespace loom::io
