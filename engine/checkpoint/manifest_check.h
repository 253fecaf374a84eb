// Checks a checkpoint that is open for reading against the manifest in its folder.
//
// Named    every file that .metadata names is in the manifest, with the size that .metadata gives.
// Bytes    every byte of every file is summed, through the mapped file: one pass at the speed of memory.
// Number   the iteration is the same in the manifest, in the folder's name (iter_0000010) and in the value
//          `iteration`. A folder of another name, and the release, may hold any.
// Absent   a folder from another program has no manifest: only its number is compared.
// Threads  safe from any number of threads.
// Errors   io::FileDamage: "FOLDER: ACTUAL, but shardloom_manifest.json says EXPECTED; ...".
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "engine/checkpoint/manifest.h"
#include "engine/formats/dcp/dcp_folder.h"

namespace loom::checkpoint {

// Makes all these checks. Later reads of pieces do not compare their own checksums.
void check_whole(io::DcpFolder& checkpoint);

// The single checks, for ranks that share the work. None: there is no manifest.
std::optional<Manifest> manifest_of(const io::DcpFolder& checkpoint);
void check_number(const std::filesystem::path& folder, const Manifest& manifest);  // the folder's name
void check_iteration(const io::DcpFolder& checkpoint, const std::optional<Manifest>& manifest);
[[noreturn]] void raise_damage(const std::filesystem::path& folder, const std::string& problem);

// A byte range of one file of a manifest, by its place in the list.
struct FilePart {
  std::size_t file = 0;
  std::int64_t begin = 0;
  std::int64_t bytes = 0;
};
// The bytes of member `index` of `members`: equal shares of all files, laid one behind another.
std::vector<FilePart> share_of(const Manifest& manifest, int index, int members);
// The checksum of a part of a file of the manifest's size. ConfigError if it cannot be read, Error if it changes
// meanwhile.
std::uint32_t sum_part(const std::filesystem::path& path, const ManifestFile& file, std::int64_t begin,
                       std::int64_t bytes);

}  // namespace loom::checkpoint
