#include "engine/checkpoint/manifest_check.h"

#include <unistd.h>

#include <algorithm>
#include <fmt/core.h>
#include <span>
#include <sys/mman.h>
#include <system_error>

#include "engine/checkpoint/directories.h"
#include "engine/checkpoint/verify.h"
#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/io/checksum.h"
#include "engine/io/mapped_file.h"

namespace loom::checkpoint {
namespace {

namespace fs = std::filesystem;
using io::PlainValue;

constexpr std::size_t kPieceBytes = std::size_t{4} << 20;

// Takes pages of a mapped file out of this process's memory; the file's cache keeps them.
void let_go(std::span<const std::byte> mapped) {
  static const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<std::uintptr_t>(mapped.data()) / page * page;
  const auto end = reinterpret_cast<std::uintptr_t>(mapped.data() + mapped.size());
  ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

std::string own_name(const fs::path& folder) {
  std::error_code error;
  return fs::weakly_canonical(folder, error).filename().string();
}

// The iteration in the folder's name, or nothing.
std::optional<std::int64_t> number_of(const fs::path& folder) { return iteration_of(own_name(folder)); }

void check_named(const io::DcpFolder& checkpoint, const Manifest& manifest) {
  for (const std::string& name : checkpoint.metadata().files) {
    if (std::ranges::find(manifest.files, name, &ManifestFile::name) != manifest.files.end()) continue;
    raise_damage(checkpoint.folder(),
                 fmt::format(".metadata names {}, but {} does not", shown_text(name), kManifestName));
  }
}

}  // namespace

void raise_damage(const fs::path& folder, const std::string& problem) {
  throw io::FileDamage(
      fmt::format("{}: {}; a file is damaged, or of another checkpoint", escaped(folder.string()), problem));
}

void check_number(const fs::path& folder, const Manifest& manifest) {
  const auto number = number_of(folder);
  const bool is_release = own_name(folder) == kRelease.directory_name();
  if ((!number || manifest.id == CheckpointId{*number}) && (!is_release || manifest.id == kRelease)) return;
  raise_damage(folder, fmt::format("its {} belongs to {}", kManifestName, manifest.id.directory_name()));
}

std::optional<Manifest> manifest_of(const io::DcpFolder& checkpoint) {
  const fs::path& folder = checkpoint.folder();
  if (entry_at(folder / kManifestName).kind == Entry::Kind::kNone) return std::nullopt;
  Manifest manifest;
  if (const auto problem = read_manifest(folder, manifest)) raise_damage(folder, *problem);
  check_number(folder, manifest);
  check_named(checkpoint, manifest);
  if (const auto problem = sizes_problem(folder, manifest.files, kManifestName)) raise_damage(folder, *problem);
  return manifest;
}

void check_iteration(const io::DcpFolder& checkpoint, const std::optional<Manifest>& manifest) {
  const fs::path& folder = checkpoint.folder();
  const std::optional<std::int64_t> expected = manifest ? manifest->id.iteration : number_of(folder);
  const io::DcpItem* item = checkpoint.find("iteration");
  if (!expected || item == nullptr || item->is_tensor) return;
  const PlainValue value = checkpoint.value(*item);
  if (!value.is(PlainValue::Kind::kWhole) || value.as_whole() == *expected) return;
  raise_damage(folder, fmt::format("its files hold iteration {}, but {} says {}", value.as_whole(),
                                   manifest ? std::string(kManifestName) : "the folder's name", *expected));
}

std::vector<FilePart> share_of(const Manifest& manifest, int index, int members) {
  std::int64_t all = 0;
  for (const ManifestFile& file : manifest.files) all += file.size_bytes;
  const std::int64_t each = all / members;
  const std::int64_t rest = all % members;  // the first ones get a byte more
  const std::int64_t begin = each * index + std::min<std::int64_t>(index, rest);
  const std::int64_t end = begin + each + (index < rest ? 1 : 0);
  std::vector<FilePart> parts;
  std::int64_t at = 0;  // where the file begins
  for (std::size_t i = 0; i < manifest.files.size(); ++i) {
    const std::int64_t first = std::max(begin, at);
    const std::int64_t last = std::min(end, at + manifest.files[i].size_bytes);
    if (first < last) parts.push_back({i, first - at, last - first});
    at += manifest.files[i].size_bytes;
  }
  return parts;
}

// The mapped bytes need no copy. Whoever cuts the file short in the meantime is noticed before the next piece.
std::uint32_t sum_part(const fs::path& path, const ManifestFile& file, std::int64_t begin, std::int64_t bytes) {
  const io::MappedFile mapped(path);
  if (mapped.identity().size_bytes != file.size_bytes) raise<Error>("{} changes while it is read", path.string());
  std::uint32_t crc = 0;
  for (auto rest = mapped.bytes().subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(bytes));
       !rest.empty();) {
    const io::FileReader unchanged(mapped);
    const auto piece = rest.first(std::min(rest.size(), kPieceBytes));
    crc = io::crc32c(piece, crc);
    let_go(piece);
    rest = rest.subspan(piece.size());
  }
  return crc;
}

void check_whole(io::DcpFolder& checkpoint) {
  const auto manifest = manifest_of(checkpoint);
  if (manifest) {
    for (const ManifestFile& file : manifest->files) {
      if (const auto problem = file_problem(checkpoint.folder(), file)) raise_damage(checkpoint.folder(), *problem);
    }
    checkpoint.set_verified();
  }
  check_iteration(checkpoint, manifest);
}

}  // namespace loom::checkpoint
