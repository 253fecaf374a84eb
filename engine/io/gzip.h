// Text of a file that may be compressed with gzip.
//
// Limits   at most `most_bytes` of text are unpacked: a larger file is refused before more memory is used.
// Errors   ConfigError that begins with the file's name: truncated, damaged, too large.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

namespace loom::io {

// Whether the bytes begin as gzip's do.
bool is_gzip(std::span<const std::byte> bytes);

// The whole text of a file; unpacked if it is gzip's, whatever its name.
std::string text_of_file(const std::filesystem::path& path, std::size_t most_bytes);

}  // namespace loom::io
