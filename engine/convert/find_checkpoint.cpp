#include "engine/convert/find_checkpoint.h"

#include <algorithm>
#include <fmt/ranges.h>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "engine/checkpoint/checkpoint_folder.h"
#include "engine/checkpoint/directories.h"
#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/formats/dcp/dcp_folder.h"
#include "engine/formats/folder_kind.h"

namespace loom::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostListed = 8;

bool has_metadata(const fs::path& folder) {
  std::error_code error;
  return fs::exists(folder / io::kDcpMetadataFile, error);
}

CheckpointId id_of(const fs::path& directory) {
  std::error_code error;
  const fs::path whole = fs::weakly_canonical(directory, error);
  return {iteration_of(whole.filename().string())};
}

std::vector<CheckpointId> checkpoints_in(const CheckpointFolder& folder) {
  std::vector<CheckpointId> ids;
  for (const std::int64_t iteration : folder.iterations()) ids.push_back({iteration});
  std::error_code error;
  if (fs::is_directory(folder.path_of(kRelease), error)) ids.push_back(kRelease);
  return ids;
}

std::string list_of(std::vector<std::string> names) {
  if (names.empty()) return "it is empty";
  std::ranges::sort(names);
  const std::size_t more = names.size() - std::min(names.size(), kMostListed);
  names.resize(names.size() - more);
  for (std::string& name : names) name = shown_text(name);
  return fmt::format("it holds {}{}", fmt::join(names, ", "), more == 0 ? "" : fmt::format(" and {} more", more));
}

}  // namespace

FoundCheckpoint find_checkpoint(const fs::path& given, const std::string& flag) {
  std::error_code error;
  if (!fs::is_directory(given, error)) {
    config_error("{}: {} {}; give the folder of a checkpoint", flag, given.string(),
                 fs::exists(given, error) ? "is a file" : "is not there");
  }
  if (has_metadata(given)) return {given, id_of(given)};
  const CheckpointFolder folder(given);
  std::optional<CheckpointId> named = folder.tracker();
  std::vector<CheckpointId> ids = checkpoints_in(folder);
  for (int looks = 1; named && std::ranges::find(ids, *named) == ids.end(); ++looks) {
    const std::optional<CheckpointId> missing = std::exchange(named, folder.tracker());
    if (named == missing || looks == kMostLooks) {
      config_error("{}: {} names {}, which is not there; {}", flag, folder.tracker_path().string(),
                   missing->directory_name(), list_of(names_in(given)));
    }
    ids = checkpoints_in(folder);
  }
  if (named) return {folder.path_of(*named), *named};
  if (ids.size() == 1) return {folder.path_of(ids.front()), ids.front()};
  if (ids.size() > 1) {
    std::vector<std::string> names;
    for (const CheckpointId& id : ids) names.push_back(id.directory_name());
    config_error("{}: {} has {} checkpoints and no tracker that names one: {}; give the folder of one of them", flag,
                 given.string(), ids.size(), fmt::join(names, ", "));
  }
  const std::vector<std::string> names = names_in(given);
  if (std::ranges::any_of(names, [](const std::string& n) { return n.ends_with(".safetensors"); })) {
    return {given, id_of(given)};
  }
  config_error(
      "{}: {} is no checkpoint: it has neither .metadata, nor safetensors files, nor checkpoints (release, "
      "iter_0000010) below it; {}",
      flag, given.string(), list_of(names));
}

void refuse_other_kind(const fs::path& given, const std::string& flag) {
  const std::string why = io::why_no_checkpoint(given, io::ModelFlags::kNone);
  if (!why.empty()) config_error("{}: {} {}", flag, given.string(), why);
}

}  // namespace loom::checkpoint
