#include "engine/explain/snapshot_lineup.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <set>
#include <unordered_map>

#include "engine/explain/step_groups.h"
#include "engine/observe/memory_snapshot.h"
#include "sharding/marks.h"

namespace loom::explain {
namespace {

// In this order rows choose their blocks: the surest sizes first.
constexpr std::array<std::string_view, device::kMemCategories> kOrder{
    "shard", "optimizer_state", "gradient", "gather_buffer", "unsharded", "reduce_buffer", "activation", "temporary"};

class Matcher {
 public:
  Matcher(const io::MemorySnapshot& snapshot, const SnapshotPeak& peak, const plan::StepEstimate& plan)
      : snapshot_(snapshot),
        groups_(plan.run().recording),
        planned_(observe::memory_snapshot(plan.run().recording, plan.run().times, plan.memory.allocator.conf)) {
    lineup_.planned = peak_of(planned_, "the plan");
    for (const PeakBlock& block : peak.blocks) ++left_[block.bytes];
    add_rows();
    find_planned();
    find_more();
    add_unplanned(peak);
    add_up();
  }

  Lineup take() { return std::move(lineup_); }

 private:
  using Sizes = std::map<std::int64_t, std::int64_t, std::greater<>>;  // count by size, large ones first

  const std::string& text(std::int32_t number) const { return planned_.texts[static_cast<std::size_t>(number)]; }

  // Of a planned block. Shards are allocated before any module runs: they have no group. A full parameter is of the
  // module whose call gathers it, if its frames have one: gathers ahead of a backward have none.
  std::string group_of(const std::vector<std::int32_t>& frames) const {
    const auto frame = [&](std::int32_t number) { return planned_.frames[static_cast<std::size_t>(number)]; };
    const std::string& category = text(frame(frames.back()).filename);
    const std::string& module = text(frame(frames.front()).filename);
    if (category == "shard" || module == text(frame(frames.back()).name)) return "";
    if (category != "unsharded") return groups_.of(module);
    for (const std::int32_t number : frames) {
      const std::string& name = text(frame(number).name);
      const std::string path = text(frame(number).filename) + "." + name.substr(0, name.find_first_of(": "));
      if (groups_.has(path)) return pattern_of(path);
    }
    return "";
  }

  // The row of a planned block, by its frames: module first, category last.
  std::size_t row_of(std::int32_t stack) {
    const auto [known, is_new] = rows_of_stacks_.try_emplace(stack, 0);
    if (!is_new) return known->second;
    const std::vector<std::int32_t>& frames = planned_.stacks[static_cast<std::size_t>(stack)];
    const auto file = [&](std::int32_t frame) -> const std::string& {
      return text(planned_.frames[static_cast<std::size_t>(frame)].filename);
    };
    LineupRow row{.category = file(frames.back()), .group = group_of(frames)};
    const auto place = std::ranges::find_if(
        lineup_.rows, [&](const LineupRow& r) { return r.category == row.category && r.group == row.group; });
    known->second = static_cast<std::size_t>(place - lineup_.rows.begin());
    if (place == lineup_.rows.end()) {
      lineup_.rows.push_back(std::move(row));
      at_peak_.emplace_back();
      in_step_.emplace_back();
    }
    return known->second;
  }

  void add_rows() {
    for (const PeakBlock& block : lineup_.planned.blocks) {
      const std::size_t row = row_of(block.stack);
      ++at_peak_[row][block.bytes];
      ++lineup_.rows[row].planned_blocks;
      lineup_.rows[row].planned_bytes += block.bytes;
    }
    for (const PeakBlock& block : all_sizes(planned_, lineup_.planned.device)) {
      in_step_[row_of(block.stack)].insert(block.bytes);
    }
    order_.resize(lineup_.rows.size());
    for (std::size_t i = 0; i < order_.size(); ++i) order_[i] = i;
    std::ranges::sort(order_, {}, [this](std::size_t i) {
      const LineupRow& row = lineup_.rows[i];
      return std::pair(std::ranges::find(kOrder, row.category) - kOrder.begin(), row.group);
    });
  }

  std::int64_t take(std::int64_t size, std::int64_t most) {
    const auto left = left_.find(size);
    if (left == left_.end()) return 0;
    const std::int64_t taken = std::min(most, left->second);
    left->second -= taken;
    if (left->second == 0) left_.erase(left);
    return taken;
  }

  void find_planned() {
    for (const std::size_t i : order_) {
      for (const auto& [size, count] : at_peak_[i]) {
        const std::int64_t found = take(size, count);
        lineup_.rows[i].found_blocks += found;
        lineup_.rows[i].found_bytes += found * size;
      }
    }
  }

  void find_more() {
    for (const std::size_t i : order_) {
      for (const std::int64_t size : in_step_[i]) {
        const std::int64_t more = take(size, std::numeric_limits<std::int64_t>::max());
        lineup_.rows[i].more_blocks += more;
        lineup_.rows[i].more_bytes += more * size;
      }
    }
  }

  // Of a size, the blocks that come last.
  void add_unplanned(const SnapshotPeak& peak) {
    std::map<std::pair<std::int64_t, std::string>, std::int64_t> counts;
    for (auto block = peak.blocks.rbegin(); block != peak.blocks.rend(); ++block) {
      if (take(block->bytes, 1) == 1) ++counts[{block->bytes, place_in_source(snapshot_, block->stack)}];
    }
    for (const auto& [key, count] : counts) lineup_.unplanned.push_back({key.first, count, key.second});
    std::ranges::stable_sort(lineup_.unplanned, std::greater<>(), &UnplannedBlocks::total_bytes);
  }

  void add_up() {
    std::vector<LineupRow> sorted;
    for (const std::size_t i : order_) {
      const LineupRow& row = lineup_.rows[i];
      lineup_.missing_bytes += row.missing_bytes();
      lineup_.more_bytes += row.more_bytes;
      if (row.planned_blocks > 0 || row.more_blocks > 0) sorted.push_back(row);
    }
    lineup_.rows = std::move(sorted);
    for (const UnplannedBlocks& blocks : lineup_.unplanned) lineup_.unplanned_bytes += blocks.total_bytes();
  }

  const io::MemorySnapshot& snapshot_;
  const StepGroups groups_;
  const io::MemorySnapshot planned_;
  Lineup lineup_;
  std::unordered_map<std::int32_t, std::size_t> rows_of_stacks_;
  std::vector<Sizes> at_peak_;                                   // by row
  std::vector<std::set<std::int64_t, std::greater<>>> in_step_;  // by row
  std::vector<std::size_t> order_;                               // of the rows
  std::unordered_map<std::int64_t, std::int64_t> left_;          // real blocks by size, not yet counted
};

}  // namespace

Lineup line_up(const io::MemorySnapshot& snapshot, const SnapshotPeak& peak, const plan::StepEstimate& plan) {
  return Matcher(snapshot, peak, plan).take();
}

}  // namespace loom::explain
