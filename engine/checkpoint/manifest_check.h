// A checkpoint that is open for reading, held against the manifest in its folder.
//
// Named    every file that .metadata names is in the manifest, and has the size that it says.
// Bytes    every byte of every file is summed, through the mapped file: one pass at the speed of memory.
// Number   the iteration is one and the same in the manifest, in the folder's name (iter_0000010) and in the value
//          `iteration`. A folder of another name, and the release, may hold any.
// Absent   a folder that another program wrote has no manifest: its number alone is compared.
// Threads  safe from any number of threads.
// Errors   io::FileDamage: "FOLDER: WHAT IS THERE, but shardloom_manifest.json says WHAT; ...".
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "engine/checkpoint/manifest.h"
#include "engine/formats/dcp/dcp_folder.h"

namespace loom::checkpoint {

// All of the above. Pieces are then read without comparing their own checksums.
void check_whole(io::DcpFolder& checkpoint);

// Its steps, for ranks that share the work. None: there is no manifest.
std::optional<Manifest> manifest_of(const io::DcpFolder& checkpoint);
void check_number(const std::filesystem::path& folder, const Manifest& manifest);  // the folder's name
void check_iteration(const io::DcpFolder& checkpoint, const std::optional<Manifest>& manifest);
[[noreturn]] void raise_damage(const std::filesystem::path& folder, const std::string& problem);

// Bytes of one file of a manifest, by its place in the list.
struct FilePart {
  std::size_t file = 0;
  std::int64_t begin = 0;
  std::int64_t bytes = 0;
};
// The bytes of member `index` of `members`: equal shares of all files, laid one behind another.
std::vector<FilePart> share_of(const Manifest& manifest, int index, int members);
// The checksum of a part of a file of the manifest's size. ConfigError where it cannot be read, Error where it changes
// in the meantime.
std::uint32_t sum_part(const std::filesystem::path& path, const ManifestFile& file, std::int64_t begin,
                       std::int64_t bytes);

}  // namespace loom::checkpoint
