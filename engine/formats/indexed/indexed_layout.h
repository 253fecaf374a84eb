// The fields of an .idx file and their offsets. Private to engine/formats.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace loom::io::indexed_layout {

inline constexpr std::string_view kMagic{"MMIDIDX\0\0", 9};
inline constexpr std::uint64_t kVersion = 1;
inline constexpr std::int64_t kVersionAt = 9;
inline constexpr std::int64_t kDtypeAt = 17;
inline constexpr std::int64_t kSequencesAt = 18;
inline constexpr std::int64_t kEntriesAt = 26;
inline constexpr std::int64_t kLengthsAt = 34;
inline constexpr std::int64_t kLengthBytes = 4;
inline constexpr std::int64_t kOffsetBytes = 8;
inline constexpr std::int64_t kEntryBytes = 8;

}  // namespace loom::io::indexed_layout
