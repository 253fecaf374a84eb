// FsdpTrace: what the ranks of a log did last, from the lines that FSDP2 of PyTorch writes with TORCH_LOGS=+fsdp.
//
// Lines    "[rank1]:V1127 04:27:24.086000 21556 torch/.../_fsdp_param_group.py:446] FSDP::pre_forward (layers.2)". The
//          root's group has no name. Lines whose prefix has no rank are passed over.
// Pass     a forward and its backward; begins with root_pre_forward.
// Memory   the last three passes of each rank. A log whose passes do not fit in 2^22 events, or with more than 65536
//          names, has no trace: it is then empty, and `overflowed`.
// Cut      a log that begins within a pass: the passes of its ranks are not numbered alike.
// Threads  one.
#pragma once

#include <compare>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace loom::explain {

enum class FsdpStep : std::uint8_t {
  kRootPreForward,
  kPreForward,
  kPostForward,
  kPreBackward,
  kPostBackward,
  kRootPostBackward
};
// "pre_forward".
std::string_view name_of(FsdpStep step);

struct FsdpEvent {
  FsdpStep step = FsdpStep::kRootPreForward;
  std::int32_t group = 0;  // a name's number; 0: the root's

  auto operator<=>(const FsdpEvent&) const = default;
};

struct FsdpPass {
  std::int64_t number = 0;  // of the rank, from 1 on
  std::vector<FsdpEvent> events;
};

class FsdpTrace {
 public:
  // Any line of a log.
  void take_line(std::string_view line);

  // By rank; the last passes, ascending.
  const std::map<std::int64_t, std::deque<FsdpPass>>& ranks() const { return ranks_; }
  const std::string& group(const FsdpEvent& event) const { return names_.at(static_cast<std::size_t>(event.group)); }
  bool overflowed() const { return overflowed_; }
  bool is_cut() const { return cut_; }

 private:
  std::optional<std::int32_t> number_of(std::string_view name);
  void add(std::int64_t rank, FsdpEvent event);
  void overflow();

  std::map<std::int64_t, std::deque<FsdpPass>> ranks_;
  std::vector<std::string> names_{std::string()};
  std::map<std::string, std::int32_t, std::less<>> numbers_{{std::string(), 0}};
  std::size_t events_ = 0;
  bool overflowed_ = false;
  bool cut_ = false;
};

}  // namespace loom::explain
