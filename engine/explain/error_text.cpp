#include "engine/explain/error_text.h"

#include <algorithm>

#include "engine/explain/text_scanner.h"

namespace loom::explain {
namespace {

constexpr std::size_t kPrefixBytes = 256;

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

// "[rank3]:" of PyTorch, "[default3]:" of torchrun, whose word is the role.
void read_bracket(TextScanner bracket, Speaker& speaker) {
  const std::string_view text = bracket.rest();
  const std::string_view role =
      text.substr(0, static_cast<std::size_t>(std::ranges::find_if_not(text, is_letter) - text.begin()));
  if (role.empty() || !bracket.take(role)) return;
  const auto number = bracket.whole();
  if (!number || !bracket.take("]:")) return;
  auto& rank = role == "rank" ? speaker.rank : speaker.local_rank;
  if (!rank) rank = number;
}

// "3: " of srun -l, "[1,3]<stderr>:" of mpirun --tag-output.
std::optional<std::int64_t> rank_of_launcher(std::string_view line) {
  line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
  TextScanner srun(line);
  const auto task = srun.whole();
  if (task && srun.take(": ")) return task;
  TextScanner mpirun(line);
  if (!mpirun.take("[") || !mpirun.whole() || !mpirun.take(",")) return std::nullopt;
  const auto rank = mpirun.whole();
  return mpirun.take("]<std") ? rank : std::nullopt;
}

}  // namespace

Speaker read_speaker(std::string_view line) {
  Speaker speaker;
  const std::string_view prefix = line.substr(0, kPrefixBytes);
  for (auto at = prefix.find('['); at != std::string_view::npos; at = prefix.find('[', at + 1)) {
    read_bracket(TextScanner(prefix.substr(at + 1)), speaker);
  }
  if (!speaker.rank) speaker.rank = rank_of_launcher(prefix);
  return speaker;
}

std::optional<ErrorReport> read_error(std::string_view line, std::int64_t number) {
  ErrorReport report{.line = number, .speaker = {}, .what = {}};
  if (auto memory = read_out_of_memory(line)) {
    report.what = std::move(*memory);
  } else if (auto timeout = read_nccl_timeout(line)) {
    report.what = std::move(*timeout);
  } else if (auto state = read_nccl_state(line)) {
    report.what = std::move(*state);
  } else if (auto mismatch = read_mismatch(line)) {
    report.what = std::move(*mismatch);
  } else if (auto barrier = read_barrier_failure(line)) {
    report.what = std::move(*barrier);
  } else if (auto gloo = read_gloo_error(line)) {
    report.what = std::move(*gloo);
  } else if (auto error = read_hccl_error(line)) {
    report.what = std::move(*error);
  } else {
    return std::nullopt;
  }
  report.speaker = read_speaker(line);
  return report;
}

}  // namespace loom::explain
