// The configuration in a report: the command line, and the text of every file that it names.
//
// JSON     {"command": ["train", "--lr", "0.01", ...], "files": [{"name": "--fsdp2-config-path", "path", "text"}, ...]}
// Errors   ConfigError if a file cannot be read.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "engine/observe/options.h"
#include "engine/train/sections.h"

namespace loom::observe {

// `more`: further files, each with the key that names it.
nlohmann::ordered_json configuration_json(const models::ModelOptions& model_options,
                                          const train::ParallelOptions& parallel, const ReportOptions& options,
                                          const std::vector<std::pair<std::string, std::filesystem::path>>& more = {});

}  // namespace loom::observe
