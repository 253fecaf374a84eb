// The list of files, as JSON, in a manifest and in a part of a save. Private to engine/checkpoint.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/checkpoint/manifest.h"
#include "engine/config/section.h"

namespace loom::checkpoint {

// A list of objects, sorted by name, one per line.
std::string files_json(std::span<const ManifestFile> files);
// The list under the key "files". ConfigError with the document's path.
std::vector<ManifestFile> read_files(const config::Section& document);
// A required whole number of at least 0.
std::int64_t read_whole(const config::Section& section, std::string_view key);

}  // namespace loom::checkpoint
