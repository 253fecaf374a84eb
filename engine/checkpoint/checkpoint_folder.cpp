#include "engine/checkpoint/checkpoint_folder.h"

#include <algorithm>
#include <fmt/format.h>
#include <functional>

#include "engine/checkpoint/directories.h"
#include "engine/checkpoint/verify.h"
#include "engine/config/document.h"
#include "engine/core/error.h"
#include "engine/core/parse_number.h"
#include "engine/core/shown_text.h"

namespace loom::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTrackerName = "latest_checkpointed_iteration.txt";
constexpr std::size_t kMostNamed = 5;  // checkpoints in one message

std::string trimmed(const std::string& text) {
  constexpr const char* kSpace = " \t\r\n";
  const std::size_t first = text.find_first_not_of(kSpace);
  if (first == std::string::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

std::optional<CheckpointId> parse_tracker(const std::string& word) {
  if (word == "release") return kRelease;
  const auto iteration = parse_number<std::int64_t>(word);
  if (!iteration || *iteration < 0) return std::nullopt;
  return CheckpointId{*iteration};
}

// "the folder has the iterations 30, 20, 10".
std::string iterations_text(std::vector<std::int64_t> iterations) {
  if (iterations.empty()) return "the folder has no iterations";
  const std::size_t others = iterations.size() - std::min(iterations.size(), kMostNamed);
  iterations.resize(iterations.size() - others);
  return fmt::format("the folder has the iteration{} {}{}", iterations.size() == 1 ? "" : "s",
                     fmt::join(iterations, ", "), others == 0 ? "" : fmt::format(" and {} more", others));
}

[[noreturn]] void raise_none_usable(const fs::path& folder, const std::vector<Choice::Passed>& passed) {
  std::vector<std::string> reasons;
  for (const Choice::Passed& one : passed) {
    if (reasons.size() == kMostNamed) {
      reasons.push_back(fmt::format("and {} more", passed.size() - kMostNamed));
      break;
    }
    reasons.push_back(fmt::format("{}: {}", one.path.filename().string(), one.reason));
  }
  config_error("{}: none of its checkpoints is whole: {}; give another folder", folder.string(),
               fmt::join(reasons, "; "));
}

}  // namespace

CheckpointFolder::CheckpointFolder(fs::path folder) : folder_(std::move(folder)) {}

fs::path CheckpointFolder::path_of(const CheckpointId& id) const { return folder_ / id.directory_name(); }

fs::path CheckpointFolder::tracker_path() const { return folder_ / kTrackerName; }

std::vector<std::int64_t> CheckpointFolder::iterations() const {
  std::vector<std::int64_t> iterations;
  for (const std::string& name : names_in(folder_)) {
    if (const auto iteration = iteration_of(name)) iterations.push_back(*iteration);
  }
  std::ranges::sort(iterations, std::greater<>());
  return iterations;
}

std::optional<CheckpointId> CheckpointFolder::tracker() const {
  const fs::path path = tracker_path();
  const Entry entry = entry_at(path);
  if (entry.kind == Entry::Kind::kNone) return std::nullopt;
  if (entry.kind != Entry::Kind::kFile) {
    config_error("{}: {}; make it a file with an iteration or release in it", path.string(), entry.description());
  }
  const std::string word = trimmed(config::read_text(path, "a file with an iteration or release in it"));
  if (const auto id = parse_tracker(word)) return id;
  config_error("{}: {}; write an iteration of the folder, or release", path.string(),
               word.empty() ? "is empty" : fmt::format("says '{}'", shown_text(word)));
}

Verdict CheckpointFolder::verify(const CheckpointId& id, VerifyDepth depth) const {
  return verify_directory(path_of(id), id, depth);
}

std::optional<Choice> CheckpointFolder::choose_from(const std::vector<CheckpointId>& ids, VerifyDepth depth,
                                                    std::vector<Choice::Passed>& passed) const {
  for (const CheckpointId& id : ids) {
    Verdict verdict = verify(id, depth);
    if (verdict.usable()) return Choice{id, path_of(id), std::move(verdict), std::move(passed)};
    passed.push_back({path_of(id), std::move(verdict.reason)});
  }
  return std::nullopt;
}

Choice CheckpointFolder::exactly(std::int64_t iteration, VerifyDepth depth) const {
  const CheckpointId id{iteration};
  Verdict verdict = verify(id, depth);
  if (verdict.usable()) return {id, path_of(id), std::move(verdict), {}};
  config_error("{}: {}; {}", path_of(id).string(), verdict.reason, iterations_text(iterations()));
}

std::optional<Choice> CheckpointFolder::look(const std::optional<CheckpointId>& named, VerifyDepth depth,
                                             std::vector<Choice::Passed>& passed) const {
  std::vector<CheckpointId> ids;
  if (named) ids.push_back(*named);
  for (const std::int64_t iteration : iterations()) {
    if (!named || (named->iteration && iteration < *named->iteration)) ids.push_back({iteration});
  }
  if (!named && !ids.empty()) {
    passed.push_back({tracker_path(), "it is not there; the newest whole checkpoint is taken"});
  }
  return choose_from(ids, depth, passed);
}

std::optional<Choice> CheckpointFolder::choose(std::optional<std::int64_t> requested, VerifyDepth depth) const {
  if (requested) return exactly(*requested, depth);
  for (int looks = 1;; ++looks) {
    const std::optional<CheckpointId> named = tracker();
    std::vector<Choice::Passed> passed;
    std::optional<Choice> choice = look(named, depth, passed);
    if (choice && choice->passed.empty()) return choice;
    // Another run writes the tracker before it removes the checkpoint that the former tracker named.
    if (looks < kMostLooks && tracker() != named) continue;
    if (!choice && named) raise_none_usable(folder_, passed);
    return choice;
  }
}

}  // namespace loom::checkpoint
