#include "sharding/axis_volume.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <string_view>

#include "engine/core/units.h"
#include "engine/device/recording.h"
#include "sharding/predicted_volume.h"

namespace loom::sharding {
namespace {

constexpr std::array<std::string_view, 9> kOrder{"dp_shard", "post_forward", "dp_replicate", "efsdp",    "ep",
                                                 "ring",     "ulysses",      "tp",           "tp_copies"};

void add_recorded(std::vector<AxisVolume>& volumes, const device::Recording& recording) {
  for (const device::Entry& entry : recording.entries) {
    if (entry.kind != device::EntryKind::kCollective) continue;
    const std::string& axis = recording.text(entry.axis);
    auto at = std::ranges::find(volumes, axis, &AxisVolume::axis);
    if (at == volumes.end()) {
      at = volumes.insert(at, {.axis = axis, .ranks = std::ssize(recording.group(entry.group))});
    }
    at->received_bytes += entry.cost.link_bytes;
  }
}

std::string row(std::string_view axis, std::string_view ranks, std::string_view predicted, std::string_view received) {
  return fmt::format("  {:<24}{:>8}{:>12}{:>12}\n", axis, ranks, predicted, received);
}

}  // namespace

std::vector<AxisVolume> volume_by_axis(nn::Module& model, std::span<const RecomputedModule> recomputed,
                                       const StepShape& shape, const device::Recording& recording) {
  std::vector<AxisVolume> volumes = predicted_volume(model, recomputed, shape);
  add_recorded(volumes, recording);
  std::ranges::stable_sort(
      volumes, {}, [](const AxisVolume& volume) { return std::ranges::find(kOrder, volume.axis) - kOrder.begin(); });
  return volumes;
}

std::string volume_table(std::span<const AxisVolume> volumes) {
  if (volumes.empty()) return "";
  std::int64_t most = 0;
  bool exact = true;
  for (const AxisVolume& volume : volumes) {
    most = std::max({most, volume.predicted_bytes, volume.received_bytes});
    exact = exact && volume.predicted_bytes == volume.received_bytes;
  }
  const Unit unit = unit_of_bytes(most);
  std::string text = fmt::format("{:<26}{:>8}{:>12}{:>12}\n", fmt::format("by axis, received {}", unit.name), "ranks",
                                 "predicted", "recorded");
  for (const AxisVolume& volume : volumes) {
    text += row(volume.axis, fmt::to_string(volume.ranks), figure(volume.predicted_bytes, unit),
                figure(volume.received_bytes, unit));
  }
  if (!exact) {
    text +=
        "  predicted for equally loaded experts, without gathers that are not used, exchanges of the optimizer and "
        "nested recompute\n";
  }
  return text;
}

}  // namespace loom::sharding
