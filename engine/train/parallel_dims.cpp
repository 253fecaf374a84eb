#include "engine/train/parallel_dims.h"

#include <string_view>

#include "engine/core/error.h"

namespace loom::train {
namespace {

// The factors of the equation: the data degrees, and others where they count.
std::vector<comm::AxisSize> shown(const std::vector<comm::AxisSize>& axes) {
  std::vector<comm::AxisSize> kept;
  for (const comm::AxisSize& axis : axes) {
    if (axis.size > 1 || axis.name.starts_with("dp_")) kept.push_back(axis);
  }
  return kept;
}

}  // namespace

ParallelDims::ParallelDims(const ParallelDegrees& degrees, int ranks) : degrees_(degrees) {
  for (const comm::AxisSize& axis : axes()) {
    if (axis.size < 1) config_error("{} is {}, expected 1 or more", axis.name, axis.size);
  }
  if (comm::product(axes()) != ranks) {
    config_error("{}, but {} {}; give degrees whose product is {}", comm::equation(shown(axes())), ranks,
                 ranks == 1 ? "rank runs" : "ranks run", ranks);
  }
}

std::vector<comm::AxisSize> ParallelDims::axes() const {
  return {{"pp", degrees_.pp},
          {"dp_replicate", degrees_.dp_replicate},
          {"dp_shard", degrees_.dp_shard},
          {"cp", degrees_.cp},
          {"tp", degrees_.tp}};
}

int ParallelDims::data_rank(int rank) const { return rank / (degrees_.cp * degrees_.tp) % data_size(); }

comm::Axis ParallelDims::loss_axis(const comm::DeviceMesh& mesh) const {
  return mesh.flatten({"pp", "dp_replicate", "dp_shard", "cp"}, "loss");
}

// The first rank of the last stage.
bool ParallelDims::reports(int rank) const {
  return rank == (degrees_.pp - 1) * data_size() * degrees_.cp * degrees_.tp;
}

void mean_over(const comm::Axis& axis, std::span<double> values) {
  if (axis.size() == 1) return;
  axis.group().all_reduce(comm::kHostLane, values.data(), static_cast<std::int64_t>(values.size()), DType::kF64,
                          comm::ReduceOp::sum(), "loss");
  for (double& value : values) value /= axis.size();
}

}  // namespace loom::train
