// --expert-load FILE: how many tokens each expert gets.
//
// File     YAML, expert_load: [3, 1, 1, 1]: a number for each expert of a layer, of at least 0, relative; the same for
//          all layers.
// Errors   ConfigError with file and line; for another number of experts when the first of them is planned.
#pragma once

#include <filesystem>
#include <vector>

namespace loom::plan {

std::vector<double> read_expert_load(const std::filesystem::path& file);

}  // namespace loom::plan
