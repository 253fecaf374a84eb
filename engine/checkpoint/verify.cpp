#include "engine/checkpoint/verify.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <fmt/format.h>
#include <optional>
#include <span>
#include <string_view>

#include "engine/checkpoint/directories.h"
#include "engine/config/document.h"
#include "engine/core/descriptor.h"
#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/io/checksum.h"
#include "engine/io/output_target.h"

namespace loom::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kPieceBytes = std::size_t{4} << 20;
constexpr std::int64_t kMostManifestBytes = std::int64_t{16} << 20;  // as config::parse_json takes
constexpr const char* kForeignIndex = ".metadata";

template <class... Args>
Verdict torn(fmt::format_string<Args...> format, Args&&... args) {
  return {.kind = Verdict::Kind::kTorn, .reason = fmt::format(format, std::forward<Args>(args)...)};
}

// Reads a file from its beginning, piece by piece, while `use` says so. Why it cannot be read, or nothing.
template <class Use>
std::optional<std::string> read_pieces(const fs::path& path, Use use) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (file.get() < 0) return fmt::format("cannot be read: {}", io::reason_of(errno));
  std::vector<std::byte> piece(kPieceBytes);
  for (;;) {
    const ssize_t got = ::read(file.get(), piece.data(), piece.size());
    if (got == 0) return std::nullopt;
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return fmt::format("cannot be read: {}", io::reason_of(errno));
    if (!use(std::span(piece).first(static_cast<std::size_t>(got)))) return std::nullopt;
  }
}

// `sayer` is who says the size. Nothing where all is well.
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

// Reads no further than the size that the manifest says: the file may grow while it is read.
std::optional<std::string> checksum_problem(const fs::path& directory, const ManifestFile& file) {
  std::uint32_t crc = 0;
  std::int64_t bytes = 0;
  const auto unreadable = read_pieces(directory / file.name, [&](std::span<const std::byte> piece) {
    crc = io::crc32c(piece, crc);
    bytes += static_cast<std::int64_t>(piece.size());
    return bytes <= file.size_bytes;
  });
  if (unreadable) return fmt::format("{} {}", shown_text(file.name), *unreadable);
  if (bytes == file.size_bytes && crc == file.crc32c) return std::nullopt;
  if (bytes != file.size_bytes) return fmt::format("{} changes while it is read", shown_text(file.name));
  return fmt::format("{} has the checksum {}, but {} says {}", shown_text(file.name), hex_digits(crc), kManifestName,
                     hex_digits(file.crc32c));
}

Verdict without_manifest(const fs::path& directory) {
  const Entry index = entry_at(directory / kForeignIndex);
  if (index.kind == Entry::Kind::kNone) return torn("it has neither {} nor {}", kManifestName, kForeignIndex);
  if (index.kind != Entry::Kind::kFile) return torn("{} {}", kForeignIndex, index.description());
  return {.kind = Verdict::Kind::kForeign,
          .reason = fmt::format("another program wrote it, without {}: its files are not checked", kManifestName)};
}

Verdict against(const Manifest& manifest, const fs::path& directory, const CheckpointId& id, VerifyDepth depth) {
  if (manifest.id != id) return torn("its {} is that of {}", kManifestName, manifest.id.directory_name());
  if (const auto problem = sizes_problem(directory, manifest.files, kManifestName)) return torn("{}", *problem);
  if (depth == VerifyDepth::kSizes) return {.kind = Verdict::Kind::kWhole, .reason = {}};
  for (const ManifestFile& file : manifest.files) {
    if (const auto problem = checksum_problem(directory, file)) return torn("{}", *problem);
  }
  return {.kind = Verdict::Kind::kWhole, .reason = {}};
}

}  // namespace

std::optional<std::string> file_problem(const fs::path& directory, const ManifestFile& file) {
  if (auto problem = sizes_problem(directory, {&file, 1}, kManifestName)) return problem;
  return checksum_problem(directory, file);
}

void flush_files(const fs::path& directory, std::span<const ManifestFile> files) {
  if (const auto problem = sizes_problem(directory, files, "its writer")) {
    raise<Error>("{}: {}", directory.string(), *problem);
  }
  for (const ManifestFile& file : files) flush_file(directory / file.name);
}

Verdict verify_directory(const fs::path& directory, const CheckpointId& id, VerifyDepth depth) {
  const Entry place = entry_at(directory);
  if (place.kind != Entry::Kind::kDirectory) {
    return torn("it {}{}", place.description(), place.kind == Entry::Kind::kFile ? ", not a directory" : "");
  }
  const Entry written = entry_at(directory / kManifestName);
  if (written.kind == Entry::Kind::kNone) return without_manifest(directory);
  if (written.kind != Entry::Kind::kFile) return torn("{} {}", kManifestName, written.description());
  if (written.size_bytes > kMostManifestBytes) {
    return torn("{} has {} bytes; one of ours has at most {}", kManifestName, written.size_bytes, kMostManifestBytes);
  }
  try {
    const std::string text = config::read_text(directory / kManifestName, "a manifest");
    return against(parse_manifest(text, kManifestName), directory, id, depth);
  } catch (const ConfigError& error) {
    return torn("{}", escaped(error.what()));
  }
}

}  // namespace loom::checkpoint
