#include "engine/train/drawn_rows.h"

#include "engine/core/rank_context.h"
#include "engine/core/rng.h"
#include "engine/dist/context_layout.h"
#include "engine/objective/stage.h"

namespace loom::train {
namespace {

// Parts do not depend on the length: the shortest row shows them.
std::vector<RngRows::Parts> parts_of(const dist::ContextDegrees& degrees, const ParallelDims& dims) {
  std::vector<RngRows::Parts> parts;
  if (degrees.ranks() == 1) return parts;
  const int rank = dims.context_rank(RankContext::current().rank());
  for (const auto& [begin, end] : dist::token_ranges(dist::length_unit(degrees), degrees, rank)) {
    parts.push_back({begin, end - begin});
  }
  return parts;
}

}  // namespace

RngRows drawn_rows(const TrainSections& arguments, const TrainingInputs& inputs,
                   std::span<const std::int64_t> samples) {
  RngRows rows{.key = stream_key(arguments.data.seed, "operators"), .numbers = {}};
  const std::int64_t of_sample = objective::row_of(arguments.objective.stage).has_pairs ? 2 : 1;
  for (std::int64_t row = 0; row < of_sample; ++row) {
    for (const std::int64_t sample : samples) rows.numbers.push_back(sample * of_sample + row);
  }
  if (inputs.fsdp2) rows.parts = parts_of(inputs.fsdp2->sequences.degrees, inputs.dims);
  return rows;
}

}  // namespace loom::train
