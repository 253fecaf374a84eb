// OutputTarget: where the bytes written to a path go.
//
// File        a regular file, or none yet. Symbolic links are followed to their end, so that a link stays and what it
//             points to is written; a link to nothing names the file to make.
// Stream      a character device or a FIFO: written straight, never replaced.
// Descriptor  a path that names an open file of this process (/dev/stdout, /dev/fd/63 of `>(command)`), or "-",
//             standard output: written straight, behind what is there.
// Errors      ConfigError for a folder, a block device, a socket, and links that lead in a circle.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace loom::io {

struct OutputTarget {
  enum class Kind : std::uint8_t { kFile, kStream, kDescriptor };

  Kind kind = Kind::kFile;
  std::filesystem::path path;  // without links where its folder exists
  int descriptor = -1;         // kDescriptor
};

OutputTarget resolve_output(const std::filesystem::path& path);

// Opens a stream or descriptor for writing; the caller closes it. Opening a FIFO waits for its reader.
// Throws ConfigError "PATH: cannot create: REASON". Precondition: not a kFile.
int open_straight(const OutputTarget& target, const std::filesystem::path& shown);

// "No space left on device".
std::string reason_of(int error_number);

}  // namespace loom::io
