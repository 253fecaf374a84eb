#include "engine/checkpoint/rank_checks.h"

#include <algorithm>
#include <fmt/format.h>
#include <map>
#include <sstream>

#include "engine/checkpoint/verify.h"
#include "engine/comm/exchange.h"
#include "engine/comm/same_entries.h"
#include "engine/core/digest.h"
#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/io/checksum.h"

namespace loom::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kRead = "reading of a checkpoint";
constexpr std::size_t kEndBytes = 4096;

std::span<const std::byte> end_of(std::span<const std::byte> bytes) {
  return bytes.last(std::min(kEndBytes, bytes.size()));
}

std::uint32_t sum_of_ends(const io::DcpFolder& checkpoint, std::size_t file, const io::MappedFile& mapped) {
  const auto bytes = mapped.bytes();
  std::uint32_t sum = io::crc32c(end_of(bytes), io::crc32c(bytes.first(std::min(kEndBytes, bytes.size()))));
  for (const io::DcpItem& item : checkpoint.metadata().items) {
    for (const io::DcpPiece& piece : item.pieces) {
      const bool inside =
          piece.file == file && piece.begin <= bytes.size() && piece.length <= bytes.size() - piece.begin;
      if (inside) sum = io::crc32c(end_of(bytes.subspan(piece.begin, piece.length)), sum);
    }
  }
  return sum;
}

comm::SaidEntry entry_of(const std::string& name, std::int64_t bytes, std::uint32_t sum) {
  return {fmt::format("file {}", shown_text(name)),
          fmt::format("{} bytes with the checksum {}", bytes, hex_digits(sum))};
}

std::vector<comm::SaidEntry> entries_of(const io::DcpFolder& checkpoint, const std::optional<Manifest>& manifest) {
  std::vector<comm::SaidEntry> entries{{"iteration", manifest ? manifest->id.text() : "without a manifest"}};
  if (manifest) {
    for (const ManifestFile& file : manifest->files)
      entries.push_back(entry_of(file.name, file.size_bytes, file.crc32c));
    return entries;
  }
  for (std::size_t i = 0; i < checkpoint.metadata().files.size(); ++i) {
    const std::string& name = checkpoint.metadata().files[i];
    const io::MappedFile mapped(checkpoint.folder() / name);
    entries.push_back(entry_of(name, mapped.identity().size_bytes, sum_of_ends(checkpoint, i, mapped)));
  }
  return entries;
}

}  // namespace

void check_same_checkpoint(const io::DcpFolder& checkpoint, const std::optional<Manifest>& manifest,
                           comm::ProcessGroup& everyone) {
  if (everyone.size() == 1) return;
  comm::check_same_entries(entries_of(checkpoint, manifest), everyone,
                           {.tag = "agreement on the checkpoint",
                            .differ = fmt::format("--load: ranks do not read the same checkpoint in {}",
                                                  escaped(checkpoint.folder().string())),
                            .advice = "put one and the same checkpoint where every rank reads it"});
}

std::string identity_of_files(const fs::path& folder, const Manifest& manifest) {
  std::uint64_t found = kDigestSeed;
  for (const ManifestFile& file : manifest.files) {
    const io::FileIdentity identity = io::MappedFile(folder / file.name).identity();
    found = digest(&identity.inode, sizeof identity.inode, found);
    found = digest(&identity.modified_ns, sizeof identity.modified_ns, found);
  }
  return fmt::format("{:016x}", found);
}

SharedSums::SharedSums(const Manifest& manifest, const std::string& identity, comm::ProcessGroup& everyone)
    : manifest_(manifest), everyone_(everyone) {
  std::map<std::string, Members> groups;
  const auto identities = comm::exchange_lines(everyone, identity, kRead);
  for (std::size_t rank = 0; rank < identities.size(); ++rank) {
    groups[identities[rank].at(0)].push_back(static_cast<int>(rank));
  }
  for (auto& [seen, members] : groups) groups_.push_back(std::move(members));
}

std::string SharedSums::of_own_share(const fs::path& folder) const {
  std::string sums;
  for (const Members& members : groups_) {
    const auto own = std::ranges::find(members, everyone_.rank());
    if (own == members.end()) continue;
    const auto index = static_cast<int>(own - members.begin());
    for (const FilePart& part : share_of(manifest_, index, static_cast<int>(members.size()))) {
      const ManifestFile& file = manifest_.files[part.file];
      sums += fmt::format("{} ", sum_part(folder / file.name, file, part.begin, part.bytes));
    }
  }
  return sums;
}

std::vector<std::uint32_t> SharedSums::joined(const Members& members,
                                              const std::vector<std::vector<std::string>>& of_ranks) const {
  std::vector<std::uint32_t> sums(manifest_.files.size(), 0);
  for (std::size_t i = 0; i < members.size(); ++i) {
    const auto& lines = of_ranks[static_cast<std::size_t>(members[i])];
    std::istringstream text(lines.empty() ? "" : lines.front());
    for (const FilePart& part : share_of(manifest_, static_cast<int>(i), static_cast<int>(members.size()))) {
      std::uint32_t sum = 0;
      text >> sum;
      sums[part.file] = io::crc32c_of_both(sums[part.file], sum, static_cast<std::uint64_t>(part.bytes));
    }
  }
  return sums;
}

std::string SharedSums::ranks_text(const Members& members) const {
  if (static_cast<int>(members.size()) == everyone_.size()) return {};
  std::vector<int> ranks;
  for (const int member : members) ranks.push_back(everyone_.ranks()[static_cast<std::size_t>(member)]);
  return fmt::format(" ({} {})", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ","));
}

std::string SharedSums::damage(const fs::path& folder, const std::string& own) const {
  const auto of_ranks = comm::exchange_lines(everyone_, own, kRead);
  for (const Members& members : groups_) {
    const auto sums = joined(members, of_ranks);
    for (std::size_t i = 0; i < sums.size(); ++i) {
      const auto problem = checksum_problem(manifest_.files[i], sums[i]);
      if (problem) return fmt::format("{}: {}{}", escaped(folder.string()), *problem, ranks_text(members));
    }
  }
  return {};
}

}  // namespace loom::checkpoint
