// A checkpoint's directory against its manifest. Private to engine.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "engine/checkpoint/checkpoint_folder.h"

namespace loom::checkpoint {

Verdict verify_directory(const std::filesystem::path& directory, const CheckpointId& id, VerifyDepth depth);

// Each of these: what is wrong, without the directory's path; nothing where all is well.
//
// The manifest of a directory that has one, put into `manifest`.
std::optional<std::string> read_manifest(const std::filesystem::path& directory, Manifest& manifest);
// Whether the files are there, with their sizes. `sayer` is who says the size.
std::optional<std::string> sizes_problem(const std::filesystem::path& directory, std::span<const ManifestFile> files,
                                         std::string_view sayer);
// One file, its bytes read and summed.
std::optional<std::string> file_problem(const std::filesystem::path& directory, const ManifestFile& file);
// The same where the sum is known.
std::optional<std::string> checksum_problem(const ManifestFile& file, std::uint32_t crc32c,
                                            std::string_view sayer = kManifestName);

// Reads the files back. Error where one is not what was written.
void read_back(const std::filesystem::path& directory, std::span<const ManifestFile> files);

// Flushes the files to disk. Error where one is not there with its size.
void flush_files(const std::filesystem::path& directory, std::span<const ManifestFile> files);

}  // namespace loom::checkpoint
