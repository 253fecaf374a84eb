#include "engine/checkpoint/resume.h"

#include <algorithm>
#include <charconv>
#include <fmt/core.h>

#include "engine/checkpoint/checkpoint_folder.h"
#include "engine/checkpoint/directories.h"
#include "engine/checkpoint/rank_checks.h"
#include "engine/comm/exchange.h"
#include "engine/core/error.h"
#include "engine/core/log.h"
#include "engine/core/shown_text.h"
#include "engine/formats/folder_kind.h"

namespace loom::checkpoint {
namespace {

constexpr std::string_view kChoice = "choice of a checkpoint";
constexpr std::string_view kRead = "reading of a checkpoint";

// The messages of rank 0 to the others, a line each: a word, then its text.
constexpr std::string_view kNone = "none";
constexpr std::string_view kError = "error ";
constexpr std::string_view kSelf = "self";
constexpr std::string_view kIteration = "iteration ";
constexpr std::string_view kReleaseWord = "release";

// The results of a rank's reading, before the text of its message.
constexpr std::string_view kGone = "gone ";
constexpr std::string_view kDamaged = "damaged ";

std::string said(const CheckpointId& id) {
  return id.iteration ? fmt::format("{}{}", kIteration, *id.iteration) : std::string(kReleaseWord);
}

std::string choose(const std::filesystem::path& folder, std::optional<std::int64_t> requested) {
  std::error_code error;
  if (std::filesystem::exists(folder / io::kDcpMetadataFile, error)) return std::string(kSelf);
  const std::string other_kind = io::why_no_checkpoint(folder, io::ModelFlags::kOfTraining);
  if (!other_kind.empty()) config_error("--load: {} {}", folder.string(), other_kind);
  const auto choice = CheckpointFolder(folder).choose(requested, VerifyDepth::kSizes);
  if (!choice) return std::string(kNone);
  for (const Choice::Passed& passed : choice->passed) {
    log_warning("{}: passed over: {}", escaped(passed.path.string()), passed.reason);
  }
  return said(choice->id);
}

// The newest usable iteration below one that is damaged.
std::string choose_below(const std::filesystem::path& folder, std::int64_t damaged) {
  const CheckpointFolder checkpoints(folder);
  for (const std::int64_t iteration : checkpoints.iterations()) {
    if (iteration >= damaged) continue;
    const Verdict verdict = checkpoints.verify({iteration}, VerifyDepth::kSizes);
    if (verdict.usable()) return said({iteration});
    log_warning("{}: passed over: {}", escaped(checkpoints.path_of({iteration}).string()), verdict.reason);
  }
  return std::string(kNone);
}

// Rank 0's answer, on every rank.
template <class Answer>
std::string ask_rank_0(comm::ProcessGroup& everyone, const Answer& answer) {
  std::string own;
  if (everyone.rank() == 0) {
    try {
      own = answer();
    } catch (const std::exception& error) {
      own = std::string(kError) + escaped(error.what());
    }
  }
  const std::string first = comm::exchange_lines(everyone, own, kChoice).front().at(0);
  if (first.starts_with(kError)) config_error("{}", first.substr(kError.size()));
  return first;
}

std::optional<Resumed> parse(const std::string& text, const std::filesystem::path& folder) {
  if (text == kNone) return std::nullopt;
  if (text == kSelf) return Resumed{folder, std::nullopt, folder.filename() == kReleaseWord};
  if (text == kReleaseWord) return Resumed{CheckpointFolder(folder).path_of(kRelease), std::nullopt, true};
  std::int64_t iteration = 0;
  std::from_chars(text.data() + kIteration.size(), text.data() + text.size(), iteration);
  return Resumed{CheckpointFolder(folder).path_of({iteration}), iteration, false};
}

// The outcome of a reading, on every rank.
struct Reading {
  std::string problem;   // the first rank's; empty: every rank has read its part
  bool is_gone = false;  // another run removed or replaced the checkpoint meanwhile
};

// The reading of one checkpoint, step by step: each ends on every rank with what any rank found.
class Reader {
 public:
  Reader(const Resumed& from, comm::ProcessGroup& everyone)
      : from_(from), everyone_(everyone), directory_(directory_at(from.path)) {}

  // False if a rank found a problem, which is then the problem of the reading.
  template <class Step>
  bool all(const Step& step) {
    std::string own;
    try {
      step();
    } catch (const Error& error) {
      const bool is_gone = from_.iteration && (!directory_ || directory_at(from_.path) != directory_);
      if (!is_gone && dynamic_cast<const io::FileDamage*>(&error) == nullptr) throw;
      own = fmt::format("{}{}", is_gone ? kGone : kDamaged, escaped(error.what()));
    }
    const auto lines = comm::exchange_lines(everyone_, own, kRead);
    for (const std::string_view word : {kGone, kDamaged}) {
      const auto bad =
          std::ranges::find_if(lines, [&](const auto& rank) { return !rank.empty() && rank[0].starts_with(word); });
      if (bad == lines.end()) continue;
      reading_ = {fmt::format("{} (rank {})", bad->front().substr(word.size()),
                              everyone_.ranks()[static_cast<std::size_t>(bad - lines.begin())]),
                  word == kGone};
      return false;
    }
    return true;
  }
  // The same for an outcome that is equal on every rank.
  bool is_whole(std::string problem) {
    reading_.problem = std::move(problem);
    return reading_.problem.empty();
  }
  const Reading& reading() const { return reading_; }

 private:
  const Resumed& from_;
  comm::ProcessGroup& everyone_;
  const std::optional<DirectoryIdentity> directory_;
  Reading reading_;
};

// Nothing is taken of a checkpoint before all of it is known to be whole, and the same on every rank.
Reading read_together(const Resumed& from, comm::ProcessGroup& everyone, const ReadCheckpoint& read) {
  Reader reader(from, everyone);
  std::optional<io::DcpFolder> checkpoint;
  std::optional<Manifest> manifest;
  std::string identity, sums;
  const bool opened = reader.all([&] {
    checkpoint.emplace(from.path);
    manifest = manifest_of(*checkpoint);
    if (manifest) identity = identity_of_files(from.path, *manifest);
  });
  if (!opened || !reader.all([&] { check_same_checkpoint(*checkpoint, manifest, everyone); })) return reader.reading();
  if (manifest) {
    const SharedSums shares(*manifest, identity, everyone);
    if (!reader.all([&] { sums = shares.of_own_share(from.path); })) return reader.reading();
    if (!reader.is_whole(shares.damage(from.path, sums))) return reader.reading();
    checkpoint->set_verified();
  }
  reader.all([&] {
    check_iteration(*checkpoint, manifest);
    read(*checkpoint, from);
  });
  return reader.reading();
}

}  // namespace

std::optional<Resumed> resume(const std::filesystem::path& folder, std::optional<std::int64_t> requested,
                              comm::ProcessGroup& everyone, const ReadCheckpoint& read) {
  auto from = parse(ask_rank_0(everyone, [&] { return choose(folder, requested); }), folder);
  std::string problem;
  for (int looks = 1; from; ++looks) {
    const Reading reading = read_together(*from, everyone, read);
    problem = reading.problem;
    if (problem.empty()) return from;
    if (reading.is_gone && looks < kMostLooks) {
      from = parse(ask_rank_0(everyone, [&] { return choose(folder, requested); }), folder);
      continue;
    }
    if (requested || !from->iteration || reading.is_gone) break;
    if (everyone.rank() == 0) {
      log_warning("{}: passed over: {}; the next older checkpoint is read", escaped(from->path.string()), problem);
    }
    const std::int64_t damaged = *from->iteration;
    from = parse(ask_rank_0(everyone, [&] { return choose_below(folder, damaged); }), folder);
  }
  if (problem.empty()) return std::nullopt;
  config_error("--load: no whole checkpoint is in {}: {}; take another copy of it, or leave --load out to begin anew",
               escaped(folder.string()), problem);
}

}  // namespace loom::checkpoint
