// How messages and pages show the path of a module.
#pragma once

#include <string>

namespace loom {

// The path, or "(root)" for the empty one.
inline std::string shown_path(const std::string& path) { return path.empty() ? "(root)" : path; }

}  // namespace loom
