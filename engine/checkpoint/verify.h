// Checks a checkpoint's directory against its manifest. Private to engine.
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

// Each of these returns the problem, without the directory's path; nothing if there is none.
//
// Reads the manifest of a directory that has one into `manifest`.
std::optional<std::string> read_manifest(const std::filesystem::path& directory, Manifest& manifest);
// Whether the files exist with their sizes. `sayer` is the source of the expected size.
std::optional<std::string> sizes_problem(const std::filesystem::path& directory, std::span<const ManifestFile> files,
                                         std::string_view sayer);
// Reads and sums the bytes of one file.
std::optional<std::string> file_problem(const std::filesystem::path& directory, const ManifestFile& file);
// The same for a known sum.
std::optional<std::string> checksum_problem(const ManifestFile& file, std::uint32_t crc32c,
                                            std::string_view sayer = kManifestName);

// Reads the files back. Error if one differs from the written bytes.
void read_back(const std::filesystem::path& directory, std::span<const ManifestFile> files);

// Flushes the files to disk. Error if one is missing or has another size.
void flush_files(const std::filesystem::path& directory, std::span<const ManifestFile> files);

}  // namespace loom::checkpoint
