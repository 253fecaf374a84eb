// Checks that the ranks reading one checkpoint make together before they use any of it. Private to
// engine/checkpoint.
//
// Same      all ranks have the same checkpoint open: the manifest's sizes and checksums; without a manifest the ends of
//           each file and of each piece in it, where an archive has the checksums of its contents.
// Whole     the checksum of every file matches the manifest. Ranks that see the same files (number, size and time of
//           change of each) divide the bytes; a rank with a disk of its own sums its own files.
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

// Identifies the files that this rank sees: other disks have other numbers and times. Not collective.
std::string identity_of_files(const std::filesystem::path& folder, const Manifest& manifest);

// The sums of all files, each computed by the ranks that see the same files.
class SharedSums {
 public:
  // Collective. `manifest` and `everyone` outlive the object.
  SharedSums(const Manifest& manifest, const std::string& identity, comm::ProcessGroup& everyone);

  // The sum of this rank's bytes. Not collective.
  std::string of_own_share(const std::filesystem::path& folder) const;
  // Collective: the files that differ from the manifest, with the ranks affected; empty if all match.
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
