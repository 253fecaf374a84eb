// is_there: whether a path leads to something - a file, a folder, a device; links are followed.
//
// Errors   none: what cannot be looked at, such as a path in a closed folder, is not there.
#pragma once

#include <filesystem>

namespace loom {

bool is_there(const std::filesystem::path& path);

}  // namespace loom
