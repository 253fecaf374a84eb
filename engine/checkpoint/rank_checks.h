// What the ranks that read one checkpoint find out together before they take anything of it. Private to
// engine/checkpoint.
//
// Same      all ranks have the same checkpoint open: the manifest's sizes and checksums; without a manifest the ends of
//           each file and of each piece in it, where an archive has the checksums of its contents.
// Whole     the checksum of every file is the manifest's. Ranks that see the same files (number, size and time of
//           change of each) share their bytes; a rank on a disk of its own sums its own files.
// Threads   the rank's host thread; collective.
// Errors    ConfigError for ranks that differ, CommError; the same on every rank.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "engine/checkpoint/manifest_check.h"
#include "engine/comm/process_group.h"

namespace loom::checkpoint {

void check_same_checkpoint(const io::DcpFolder& checkpoint, const std::optional<Manifest>& manifest,
                           comm::ProcessGroup& everyone);

// Which files this rank sees: other disks have other numbers and times. Not collective.
std::string identity_of_files(const std::filesystem::path& folder, const Manifest& manifest);

// The sums of all files, each made by the ranks that see the same.
class SharedSums {
 public:
  // Collective. `manifest` and `everyone` outlive the object.
  SharedSums(const Manifest& manifest, const std::string& identity, comm::ProcessGroup& everyone);

  // Of this rank's bytes. Not collective.
  std::string of_own_share(const std::filesystem::path& folder) const;
  // Collective: which file is not the manifest's, and for which ranks; empty where all are.
  std::string damage(const std::filesystem::path& folder, const std::string& own) const;

 private:
  using Members = std::vector<int>;  // ranks that see the same files, in their order

  std::vector<std::uint32_t> joined(const Members& members,
                                    const std::vector<std::vector<std::string>>& of_ranks) const;
  std::string ranks_text(const Members& members) const;

  const Manifest& manifest_;
  comm::ProcessGroup& everyone_;
  std::vector<Members> groups_;
};

}  // namespace loom::checkpoint
