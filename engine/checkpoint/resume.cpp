#include "engine/checkpoint/resume.h"

#include <algorithm>
#include <charconv>
#include <fmt/ranges.h>

#include "engine/checkpoint/checkpoint_folder.h"
#include "engine/comm/exchange.h"
#include "engine/core/error.h"
#include "engine/core/log.h"
#include "engine/core/shown_text.h"

namespace loom::checkpoint {
namespace {

constexpr std::string_view kChoice = "choice of a checkpoint";
constexpr std::string_view kRead = "reading of a checkpoint";

// What rank 0 tells the others, a line each: a word, then its text.
constexpr std::string_view kNone = "none";
constexpr std::string_view kError = "error ";
constexpr std::string_view kSelf = "self";
constexpr std::string_view kIteration = "iteration ";
constexpr std::string_view kReleaseWord = "release";

std::string said(const CheckpointId& id) {
  return id.iteration ? fmt::format("{}{}", kIteration, *id.iteration) : std::string(kReleaseWord);
}

std::string choose(const std::filesystem::path& folder, std::optional<std::int64_t> requested) {
  std::error_code error;
  if (std::filesystem::exists(folder / io::kDcpMetadataFile, error)) return std::string(kSelf);
  const auto choice = CheckpointFolder(folder).choose(requested, VerifyDepth::kSizes);
  if (!choice) return std::string(kNone);
  for (const Choice::Passed& passed : choice->passed) {
    logger().warn("{}: passed over: {}", escaped(passed.path.string()), passed.reason);
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
    logger().warn("{}: passed over: {}", escaped(checkpoints.path_of({iteration}).string()), verdict.reason);
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

// The damage that any rank found; empty where none did.
std::string read_together(const Resumed& from, comm::ProcessGroup& everyone, const ReadCheckpoint& read) {
  std::string own;
  try {
    read(io::DcpFolder(from.path), from);
  } catch (const io::FileDamage& damage) {
    own = escaped(damage.what());
  }
  const auto lines = comm::exchange_lines(everyone, own, kRead);
  const auto bad = std::ranges::find_if(lines, [](const auto& rank) { return !rank.empty(); });
  if (bad == lines.end()) return {};
  return fmt::format("{} (rank {})", bad->front(), everyone.ranks()[static_cast<std::size_t>(bad - lines.begin())]);
}

}  // namespace

std::optional<Resumed> resume(const std::filesystem::path& folder, std::optional<std::int64_t> requested,
                              comm::ProcessGroup& everyone, const ReadCheckpoint& read) {
  auto from = parse(ask_rank_0(everyone, [&] { return choose(folder, requested); }), folder);
  std::string damage;
  while (from) {
    damage = read_together(*from, everyone, read);
    if (damage.empty()) return from;
    if (requested || !from->iteration) break;
    if (everyone.rank() == 0) {
      logger().warn("{}: passed over: {}; the next older checkpoint is read", escaped(from->path.string()), damage);
    }
    const std::int64_t damaged = *from->iteration;
    from = parse(ask_rank_0(everyone, [&] { return choose_below(folder, damaged); }), folder);
  }
  if (damage.empty()) return std::nullopt;
  config_error("--load: no whole checkpoint is in {}: {}; take another copy of it, or leave --load out to begin anew",
               escaped(folder.string()), damage);
}

}  // namespace loom::checkpoint
