// Private headers: those that are nobody's business outside of their room, and that are not installed.
//
// Private  a header in a folder internal/, to the room that holds the folder; or one whose first comment says "Private
//          to ROOM.", where ROOM is a folder that it stands in (engine/tensor, models, sharding/fsdp).
// Allowed  includes from files of that room and from its tests: tests/tensor for engine/tensor, all tests for engine.
//          A header that is installed includes no private one, as it would not compile where it is installed.
//          cmake/install_headers.cmake leaves headers out by the same words.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace loom::build_test {

// The room that a header is private to; none: it is public. `header` is a path from the root.
std::optional<std::string> private_room(const std::filesystem::path& root, const std::string& header);

// #include lines of the files below `folders` that cross the line; headers below `installed` are installed unless
// private. One line a problem, "file:line: what, and what to do"; empty when all holds.
std::vector<std::string> private_problems(const std::filesystem::path& root, std::span<const std::string> folders,
                                          std::span<const std::string> installed);

}  // namespace loom::build_test
