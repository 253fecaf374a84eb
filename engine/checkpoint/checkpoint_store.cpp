#include "engine/checkpoint/checkpoint_store.h"

#include <algorithm>
#include <cerrno>
#include <sys/stat.h>
#include <utility>

#include "engine/checkpoint/directories.h"
#include "engine/checkpoint/verify.h"
#include "engine/core/error.h"
#include "engine/core/log.h"
#include "engine/core/shown_text.h"
#include "engine/io/output_target.h"

namespace loom::checkpoint {
namespace {

namespace fs = std::filesystem;

void make_directory(const fs::path& path) {
  if (::mkdir(path.c_str(), 0777) != 0) {
    raise<Error>("{}: cannot create: {}", path.string(), io::reason_of(errno));
  }
}

// The checkpoint is in place already: what cannot be removed now goes at the next begin().
void remove_former(const fs::path& path) {
  try {
    remove_directory(path);
  } catch (const Error& error) {
    log_warning("{}; the new checkpoint has replaced it, and it is no longer needed", escaped(error.what()));
  }
}

}  // namespace

CheckpointStore::CheckpointStore(fs::path folder) : folder_(std::move(folder)) {
  std::error_code error;
  fs::create_directories(folder_.path(), error);
  if (error) config_error("{}: cannot create: {}", folder_.path().string(), error.message());
}

void CheckpointStore::refuse_what_is_in_the_way(const CheckpointId& id) const {
  const Entry place = entry_at(folder_.path_of(id));
  if (place.kind != Entry::Kind::kNone && place.kind != Entry::Kind::kDirectory) {
    config_error("{}: {}; move it away, or save into another folder", folder_.path_of(id).string(),
                 place.description());
  }
  const Entry tracker = entry_at(folder_.tracker_path());
  if (tracker.kind != Entry::Kind::kNone && tracker.kind != Entry::Kind::kFile) {
    config_error("{}: {}; move it away, or save into another folder", folder_.tracker_path().string(),
                 tracker.description());
  }
}

void CheckpointStore::remove_leftovers() const {
  for (const std::string& name : names_in(folder_.path())) {
    const bool ours = std::ranges::any_of(begun_, [&](const auto& entry) { return entry.second == name; });
    if (is_temporary(name) && !ours) remove_directory(folder_.path() / name);
  }
}

fs::path CheckpointStore::begin(const CheckpointId& id) {
  require(!id.iteration || *id.iteration >= 0, "a checkpoint of iteration {}", *id.iteration);
  abandon(id);
  refuse_what_is_in_the_way(id);
  remove_leftovers();
  const std::string name = temporary_name(id.directory_name());
  make_directory(folder_.path() / name);
  begun_[id.directory_name()] = name;
  return folder_.path() / name;
}

void CheckpointStore::abandon(const CheckpointId& id) {
  const auto begun = begun_.find(id.directory_name());
  if (begun == begun_.end()) return;
  const fs::path directory = folder_.path() / begun->second;
  begun_.erase(begun);
  remove_directory(directory);
}

void CheckpointStore::commit(const Manifest& manifest) {
  const auto begun = begun_.find(manifest.id.directory_name());
  require(begun != begun_.end(), "commit of {} without begin", manifest.id.directory_name());
  const fs::path directory = folder_.path() / begun->second;
  refuse_what_is_in_the_way(manifest.id);
  flush_files(directory, manifest.files);
  report(CommitStep::kFilesFlushed);
  write_text_durably(directory / kManifestName, to_json(manifest));
  flush_directory(directory);
  report(CommitStep::kManifestWritten);
  const fs::path former = replace_directory(directory, folder_.path_of(manifest.id));
  flush_directory(folder_.path());
  report(CommitStep::kRenamed);
  write_text_durably(folder_.tracker_path(), manifest.id.text());
  report(CommitStep::kTrackerWritten);
  if (!former.empty()) remove_former(former);
  begun_.erase(begun);
  report(CommitStep::kFormerRemoved);
}

void CheckpointStore::report(CommitStep step) const {
  if (watch_) watch_(step);
}

std::vector<std::int64_t> CheckpointStore::remove_old(std::int64_t keep_last) {
  require(keep_last >= 1, "keep_last is {}", keep_last);
  std::vector<std::int64_t> removed;
  const std::optional<CheckpointId> tracker = folder_.tracker();
  if (!tracker || !tracker->iteration) return removed;
  std::int64_t kept = 0;
  for (const std::int64_t iteration : folder_.iterations()) {
    if (iteration > *tracker->iteration) continue;
    const CheckpointId id{iteration};
    if (folder_.verify(id, VerifyDepth::kSizes).kind != Verdict::Kind::kWhole) continue;
    if (++kept <= keep_last || id == *tracker) continue;
    const fs::path leaving = folder_.path() / temporary_name(id.directory_name());
    rename_directory(folder_.path_of(id), leaving);
    flush_directory(folder_.path());
    remove_directory(leaving);
    removed.push_back(iteration);
  }
  return removed;
}

}  // namespace loom::checkpoint
