#include "engine/explain/traceback.h"

#include <algorithm>
#include <array>
#include <optional>

#include "engine/explain/error_text.h"
#include "engine/explain/text_scanner.h"

namespace loom::explain {
namespace {

constexpr std::size_t kMostSpeakers = std::size_t{1} << 16;
constexpr std::size_t kFileBytes = 4096;

struct Frame {
  std::string_view file;
  std::string_view function;
};

std::optional<Frame> read_frame(std::string_view line) {
  const auto at = line.find("File \"");
  if (at == std::string_view::npos) return std::nullopt;
  TextScanner text(line.substr(at));
  text.take("File \"");
  const auto file = text.until("\", line ", kFileBytes);
  if (!file || !text.whole() || !text.take(", in ")) return std::nullopt;
  return Frame{*file, text.rest()};
}

std::int64_t speaker_number(std::string_view line) {
  const Speaker speaker = read_speaker(line);
  return speaker.rank.value_or(speaker.local_rank.value_or(-1));
}

// Frames of PyTorch that a phase goes through. A later one counts.
struct PhaseFrame {
  std::string_view file;      // its end
  std::string_view function;  // empty: any
  std::string_view phase;
};
constexpr std::array<PhaseFrame, 8> kPhases{{{"torch/nn/modules/module.py", "_call_impl", "forward"},
                                             {"torch/_tensor.py", "backward", "backward"},
                                             {"torch/autograd/__init__.py", "backward", "backward"},
                                             {"torch/autograd/graph.py", "_engine_run_backward", "backward"},
                                             {"torch/utils/checkpoint.py", "unpack_hook", "recompute"},
                                             {"torch/utils/checkpoint.py", "recompute_fn", "recompute"},
                                             {"torch/optim/optimizer.py", "", "optimizer"},
                                             {"torch/optim/adamw.py", "", "optimizer"}}};

constexpr std::array<std::pair<std::string_view, FsdpWork>, 6> kWorks{
    {{"foreach_all_gather", FsdpWork::kGather},
     {"all_gather_copy_in", FsdpWork::kGather},
     {"foreach_all_gather_copy_out", FsdpWork::kCopyOut},
     {"init_unsharded_param", FsdpWork::kCopyOut},
     {"foreach_reduce", FsdpWork::kReduce},
     {"reduce_scatter_copy_in", FsdpWork::kReduce}}};

void add_frame(Traceback& traceback, const Frame& frame) {
  for (const PhaseFrame& row : kPhases) {
    const bool is_it = frame.file.ends_with(row.file) && (row.function.empty() || frame.function == row.function);
    const bool is_within =
        row.phase == "forward" && !traceback.phase.empty();  // a module that backward or recompute runs
    if (is_it && !is_within) traceback.phase = row.phase;
  }
  const auto work = std::ranges::find(kWorks, frame.function, &std::pair<std::string_view, FsdpWork>::first);
  if (work != kWorks.end()) traceback.work = work->second;
}

}  // namespace

void TracebackReader::take_line(std::string_view line) {
  if (line.find("Traceback (most recent call last)") != std::string_view::npos) {
    speakers_.erase(speaker_number(line));
    return;
  }
  const auto frame = read_frame(line);
  if (!frame) return;
  const std::int64_t speaker = speaker_number(line);
  if (speakers_.size() < kMostSpeakers || speakers_.contains(speaker)) add_frame(speakers_[speaker], *frame);
}

Traceback TracebackReader::of(std::string_view line) const {
  const auto found = speakers_.find(speaker_number(line));
  return found == speakers_.end() ? Traceback{} : found->second;
}

}  // namespace loom::explain
