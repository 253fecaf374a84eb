// Manifest: the contents of a finished checkpoint, as listed in shardloom_manifest.json in its directory.
//
// Id       the checkpoint's identity in a folder: its iteration, or release.
// File     {"format_version": 1, "iteration": 10, "files": [{"name": "__0_0.distcp", "size_bytes": 4096,
//          "crc32c": "e3069283"}, ...]}; the files sorted by name, the checksum as 8 hex digits. The iteration of
//          release is null.
// Names    of files in the directory itself: no '/', no "." or "..", UTF-8, at most 255 bytes, no name that
//          the store itself uses (the manifest's, .part_R.json); each once.
// Errors   ConfigError that begins with the path of the file.
// Threads  safe from any number of threads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace loom::checkpoint {

inline constexpr std::string_view kManifestName = "shardloom_manifest.json";

struct CheckpointId {
  std::optional<std::int64_t> iteration;  // at least 0; none: release

  // "iter_0000010" (seven digits or more), or "release".
  std::string directory_name() const;
  // The tracker's text: "10", or "release".
  std::string text() const;
  bool operator==(const CheckpointId&) const = default;
};

inline constexpr CheckpointId kRelease{};

struct ManifestFile {
  std::string name;
  std::int64_t size_bytes = 0;
  std::uint32_t crc32c = 0;

  bool operator==(const ManifestFile&) const = default;
};

struct Manifest {
  CheckpointId id;
  std::vector<ManifestFile> files;

  bool operator==(const Manifest&) const = default;
};

std::string to_json(const Manifest& manifest);
// `shown` is the path of the text, for messages.
Manifest parse_manifest(std::string_view text, const std::filesystem::path& shown);

// Why a name is not allowed in a manifest; empty if it is.
std::string name_problem(std::string_view name);

// "e3069283".
std::string hex_digits(std::uint32_t crc32c);

}  // namespace loom::checkpoint
