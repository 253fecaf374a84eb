#include "engine/plan/swap_estimate.h"

#include <algorithm>
#include <fmt/core.h>
#include <optional>
#include <unordered_map>

#include "engine/core/units.h"
#include "engine/core/wrapped.h"

namespace loom::plan {
namespace {

using device::Entry;
using device::EntryKind;
using device::StreamId;

bool is_swap_copy(const device::Recording& recording, const Entry& entry) {
  if (entry.kind != EntryKind::kCopy) return false;
  const std::string& name = recording.text(entry.name);
  return name == "swap_d2h" || name == "swap_h2d";
}

// Whether the running calls "Decoder > model.layers.0 (DecoderLayer) > ..." have a module at `path`. The outermost
// module may be a wrapper of the one that paths are relative to.
bool runs_in(const std::string& site, const std::string& path) {
  const std::string call = path + " (";
  for (std::size_t at = site.find(call); at != std::string::npos; at = site.find(call, at + 1)) {
    if (at == 0 || site[at - 1] == ' ' || site[at - 1] == '.') return true;
  }
  return false;
}

class Sums {
 public:
  Sums(const device::Recording& recording, const virtual_time::RankTimes& times,
       const std::vector<SwappedModules>& swapped)
      : recording_(recording), times_(times), swapped_(swapped) {}

  std::vector<SwapEstimate> of_step() {
    for (std::size_t i = 0; i < recording_.entries.size(); ++i) add(recording_.entries[i], times_.entries[i]);
    for (SwapEstimate& sum : sums_) sum.recompute_ns = forward_ns_[sum.block];
    return std::move(sums_);
  }

 private:
  void add(const Entry& entry, const virtual_time::EntryTime& time) {
    if (entry.kind == EntryKind::kPhase) in_forward_ = recording_.text(entry.name) == "forward";
    if (is_swap_copy(recording_, entry) && entry.cost.work == device::WorkKind::kD2H) {
      SwapEstimate& sum = of(entry.subject);
      ++sum.copies;
      sum.out_bytes += entry.cost.read_bytes;
    }
    const bool of_compute = device::is_on_stream(entry.kind) && entry.stream == StreamId::kCompute;
    if ((of_compute && entry.kind == EntryKind::kStreamWait) || entry.kind == EntryKind::kHostWait)
      add_wait(entry, time);
    if (of_compute && entry.kind == EntryKind::kKernel) add_kernel(entry, time);
    if (of_compute) compute_free_ = time.end;
  }

  void add_wait(const Entry& entry, const virtual_time::EntryTime& time) {
    if (entry.other == device::kDone || !is_swap_copy(recording_, recording_.entry(entry.other))) return;
    const std::int64_t reached = entry.kind == EntryKind::kHostWait ? time.start : time.issued;
    of(recording_.entry(entry.other).subject).exposed_ns +=
        std::max<std::int64_t>(0, time.end - std::max(compute_free_, reached));
  }

  void add_kernel(const Entry& entry, const virtual_time::EntryTime& time) {
    if (!in_forward_) return;
    const auto [known, is_new] = block_of_site_.emplace(entry.site, std::nullopt);
    if (is_new) known->second = find_block(recording_.text(entry.site));
    if (known->second) forward_ns_[swapped_[*known->second].block] += time.end - time.start;
  }

  std::optional<std::size_t> find_block(const std::string& site) const {
    for (std::size_t i = 0; i < swapped_.size(); ++i) {
      const auto runs = [&](const std::string& path) { return runs_in(site, path); };
      if (std::ranges::any_of(swapped_[i].modules, runs)) return i;
    }
    return std::nullopt;
  }

  SwapEstimate& of(std::int32_t subject) {
    const std::string& block = recording_.text(subject);
    const auto found = std::ranges::find(sums_, block, &SwapEstimate::block);
    if (found != sums_.end()) return *found;
    return sums_.emplace_back(SwapEstimate{.block = block});
  }

  const device::Recording& recording_;
  const virtual_time::RankTimes& times_;
  const std::vector<SwappedModules>& swapped_;
  std::vector<SwapEstimate> sums_;
  std::unordered_map<std::string, std::int64_t> forward_ns_;
  std::unordered_map<std::int32_t, std::optional<std::size_t>> block_of_site_;
  std::int64_t compute_free_ = 0;
  bool in_forward_ = false;
};

// In one sentence, and nothing where swap is cheaper everywhere.
std::string advice(const std::vector<SwapEstimate>& swaps) {
  SwapEstimate cheaper;
  std::size_t count = 0;
  for (const SwapEstimate& swap : swaps) {
    if (swap.exposed_ns <= swap.recompute_ns || swap.recompute_ns == 0) continue;
    if (count++ == 0) cheaper.block = swap.block;
    cheaper.exposed_ns += swap.exposed_ns;
    cheaper.recompute_ns += swap.recompute_ns;
  }
  if (count == 0) return "";
  return fmt::format(
      "  recompute is cheaper than swap for {} of {} blocks ('{}'{}): compute waits {} a step for their copies, and "
      "computing the same again takes {}; list them in recompute_modules instead\n",
      count, swaps.size(), cheaper.block, count == 1 ? "" : ", ...", time_text(cheaper.exposed_ns),
      time_text(cheaper.recompute_ns));
}

}  // namespace

std::vector<SwapEstimate> estimate_swap(const device::Recording& recording, const virtual_time::RankTimes& times,
                                        const std::vector<SwappedModules>& swapped) {
  return Sums(recording, times, swapped).of_step();
}

std::string to_text(const std::vector<SwapEstimate>& swaps) {
  if (swaps.empty()) return "";
  SwapEstimate sum;
  for (const SwapEstimate& swap : swaps) {
    sum.copies += swap.copies;
    sum.out_bytes += swap.out_bytes;
    sum.exposed_ns += swap.exposed_ns;
  }
  const std::string text =
      fmt::format("  swap: {} tensor{} of {} block{}, {} to the host and back; compute waits {} for their copies\n",
                  sum.copies, sum.copies == 1 ? "" : "s", swaps.size(), swaps.size() == 1 ? "" : "s",
                  memory_text(sum.out_bytes), time_text(sum.exposed_ns));
  return wrapped(text + advice(swaps), 4);
}

}  // namespace loom::plan
