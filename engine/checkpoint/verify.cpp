#include "engine/checkpoint/verify.h"

#include <algorithm>
#include <cstdint>
#include <fmt/core.h>
#include <optional>
#include <span>
#include <string_view>

#include "engine/checkpoint/directories.h"
#include "engine/checkpoint/manifest_check.h"
#include "engine/config/document.h"
#include "engine/core/error.h"
#include "engine/core/shown_text.h"

namespace loom::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMostManifestBytes = std::int64_t{16} << 20;  // as config::parse_json takes
constexpr std::string_view kWriter = "its writer";
constexpr const char* kForeignIndex = ".metadata";

template <class... Args>
Verdict torn(fmt::format_string<Args...> format, Args&&... args) {
  return {.kind = Verdict::Kind::kTorn, .reason = fmt::format(format, std::forward<Args>(args)...)};
}

Verdict without_manifest(const fs::path& directory) {
  const Entry index = entry_at(directory / kForeignIndex);
  if (index.kind == Entry::Kind::kNone) return torn("it has neither {} nor {}", kManifestName, kForeignIndex);
  if (index.kind != Entry::Kind::kFile) return torn("{} {}", kForeignIndex, index.description());
  return {.kind = Verdict::Kind::kForeign,
          .reason = fmt::format("another program wrote it, without {}: its files are not checked", kManifestName)};
}

Verdict against(const Manifest& manifest, const fs::path& directory, const CheckpointId& id, VerifyDepth depth) {
  if (manifest.id != id) return torn("its {} belongs to {}", kManifestName, manifest.id.directory_name());
  if (const auto problem = sizes_problem(directory, manifest.files, kManifestName)) return torn("{}", *problem);
  if (depth == VerifyDepth::kSizes) return {.kind = Verdict::Kind::kWhole, .reason = {}};
  for (const ManifestFile& file : manifest.files) {
    if (const auto problem = file_problem(directory, file)) return torn("{}", *problem);
  }
  return {.kind = Verdict::Kind::kWhole, .reason = {}};
}

}  // namespace

std::optional<std::string> sizes_problem(const fs::path& directory, std::span<const ManifestFile> files,
                                         std::string_view sayer) {
  for (const ManifestFile& file : files) {
    const Entry entry = entry_at(directory / file.name);
    if (entry.kind != Entry::Kind::kFile) {
      return fmt::format("{} {}{}", shown_text(file.name), entry.description(),
                         entry.kind == Entry::Kind::kDirectory ? ", not a file" : "");
    }
    if (entry.size_bytes != file.size_bytes) {
      return fmt::format("{} has {} bytes, but {} says {}", shown_text(file.name), entry.size_bytes, sayer,
                         file.size_bytes);
    }
  }
  return std::nullopt;
}

std::optional<std::string> read_manifest(const fs::path& directory, Manifest& manifest) {
  const Entry written = entry_at(directory / kManifestName);
  if (written.kind != Entry::Kind::kFile) return fmt::format("{} {}", kManifestName, written.description());
  if (written.size_bytes > kMostManifestBytes) {
    return fmt::format("{} has {} bytes; one of ours has at most {}", kManifestName, written.size_bytes,
                       kMostManifestBytes);
  }
  try {
    manifest = parse_manifest(config::read_text(directory / kManifestName, "a manifest"), kManifestName);
    return std::nullopt;
  } catch (const ConfigError& error) {
    return escaped(error.what());
  }
}

std::optional<std::string> file_problem(const fs::path& directory, const ManifestFile& file) {
  if (auto problem = sizes_problem(directory, {&file, 1}, kManifestName)) return problem;
  try {
    return checksum_problem(file, sum_part(directory / file.name, file, 0, file.size_bytes));
  } catch (const Error& unreadable) {
    return escaped(unreadable.what());
  }
}

std::optional<std::string> checksum_problem(const ManifestFile& file, std::uint32_t crc32c, std::string_view sayer) {
  if (crc32c == file.crc32c) return std::nullopt;
  return fmt::format("{} has the checksum {}, but {} says {}", shown_text(file.name), hex_digits(crc32c), sayer,
                     hex_digits(file.crc32c));
}

void read_back(const fs::path& directory, std::span<const ManifestFile> files) {
  for (const ManifestFile& file : files) {
    const std::uint32_t crc32c = sum_part(directory / file.name, file, 0, file.size_bytes);
    if (const auto problem = checksum_problem(file, crc32c, kWriter)) {
      raise<Error>(
          "{}: {}: the disk does not return the bytes that were written; check that disk, or save to another one",
          directory.string(), *problem);
    }
  }
}

void flush_files(const fs::path& directory, std::span<const ManifestFile> files) {
  if (const auto problem = sizes_problem(directory, files, kWriter)) {
    raise<Error>("{}: {}", directory.string(), *problem);
  }
  for (const ManifestFile& file : files) flush_file(directory / file.name);
}

Verdict verify_directory(const fs::path& directory, const CheckpointId& id, VerifyDepth depth) {
  const Entry place = entry_at(directory);
  if (place.kind != Entry::Kind::kDirectory) {
    return torn("it {}{}", place.description(), place.kind == Entry::Kind::kFile ? ", not a directory" : "");
  }
  if (entry_at(directory / kManifestName).kind == Entry::Kind::kNone) return without_manifest(directory);
  Manifest manifest;
  if (const auto problem = read_manifest(directory, manifest)) return torn("{}", *problem);
  return against(manifest, directory, id, depth);
}

}  // namespace loom::checkpoint
