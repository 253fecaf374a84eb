// A checkpoint's directory against its manifest. Private to engine/checkpoint.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>

#include "engine/checkpoint/checkpoint_folder.h"

namespace loom::checkpoint {

Verdict verify_directory(const std::filesystem::path& directory, const CheckpointId& id, VerifyDepth depth);

// What is wrong with one file, its bytes read and summed; nothing where all is well.
std::optional<std::string> file_problem(const std::filesystem::path& directory, const ManifestFile& file);

// Flushes the files to disk. Error where one is not there with its size.
void flush_files(const std::filesystem::path& directory, std::span<const ManifestFile> files);

}  // namespace loom::checkpoint
