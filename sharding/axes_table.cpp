#include "sharding/axes_table.h"

#include <fmt/format.h>
#include <set>

#include "engine/dist/context_attention.h"
#include "sharding/tensor/share_matrices.h"

namespace loom::sharding {
namespace {

std::string axis_line(std::string_view name, int ranks, int place, std::string_view about) {
  return fmt::format("{:<12}{:>8}{:>12}  {}\n", name, ranks, place, about);
}

std::string class_line(std::string_view name, std::string_view sharded, int copies, std::string_view reduced,
                       int divisor) {
  return fmt::format("{:<20}{:>20}{:>12}{:>15}{:>12}\n", name, sharded, copies, reduced, divisor);
}

// Ranks with the same parts of matrices.
int ranks_of(const FsdpAxes& axes) { return axes.shard.size() * axes.replicate.size(); }

std::string expert_line(const FsdpAxes& axes, int divisor) {
  const std::string sharded = axes.parts->size() == 1
                                  ? fmt::to_string(axes.shard.size())
                                  : fmt::format("ep {} x efsdp {}", axes.parts->size(), axes.shard.size());
  return class_line("experts", sharded, axes.replicate.size(), fmt::to_string(ranks_of(axes)), divisor);
}

std::string matrix_lines(const FsdpAxes& axes, const TensorShares& shares) {
  std::set<std::pair<int, int>> classes;  // copies, and ranks over which gradients are summed
  for (const auto& [slot, share] : shares.shares) {
    classes.emplace(share.copies, share.sums == nullptr ? 1 : share.sums->size());
  }
  const int tensor = shares.matrices.ranks;
  std::string text;
  for (const auto& [copies, sums] : classes) {
    const std::string_view name = copies == 1       ? "matrices"
                                  : copies < tensor ? "key/value heads"
                                  : sums == 1       ? "replicated"
                                                    : "replicated, partial";
    const std::string sharded = copies == tensor ? fmt::to_string(axes.shard.size())
                                                 : fmt::format("tp {} x {}", tensor / copies, axes.shard.size());
    const std::string reduced =
        sums == 1 ? fmt::to_string(ranks_of(axes)) : fmt::format("{} x tp {}", ranks_of(axes), sums);
    text += class_line(name, sharded, copies * axes.replicate.size(), reduced, ranks_of(axes));
  }
  return text;
}

}  // namespace

std::string axes_table(const FullyShardOptions& options, const TensorShares* shares) {
  if (!options.context && !options.expert_axes && shares == nullptr) return "";
  const FsdpAxes& all = options.axes;
  const int ranks = ranks_of(all);
  const int rank = all.replicate.rank() * all.shard.size() + all.shard.rank();
  std::string text = fmt::format("{:<12}{:>8}{:>12}\n", "axis", "ranks", "this rank");
  const dist::ContextDegrees degrees = options.context ? options.context->degrees() : dist::ContextDegrees{};
  text += axis_line("data", ranks / degrees.ranks(), rank / degrees.ranks(), "samples of their own");
  if (options.context) {
    text += axis_line("ring", degrees.ring, options.context->ring.rank(), "share sequences: keys and values travel");
    text += axis_line("ulysses", degrees.ulysses, options.context->ulysses.rank(), "share sequences: heads travel");
  }
  if (shares != nullptr) {
    text += axis_line("tp", all.parts->size(), all.parts->rank(),
                      shares->matrices.sequence_parallel ? "share matrices: parts of sequences travel"
                                                         : "share matrices: sums of their products travel");
  }
  if (const auto& experts = options.expert_axes) {
    const bool shards = experts->shard.size() > 1;
    const comm::Axis& same = shards ? experts->shard : experts->replicate;
    text +=
        axis_line("efsdp", same.size(), same.rank(), shards ? "shard the same experts" : "copies of the same experts");
    text += axis_line("ep", experts->parts->size(), experts->parts->rank(), "share a set of experts: tokens travel");
  }
  text += fmt::format("{:<20}{:>20}{:>12}{:>15}{:>12}\n", "parameters", "sharded over", "copies", "reduced over",
                      "divided by");
  if (shares != nullptr) {
    text += matrix_lines(all, *shares);
  } else {
    text += class_line(options.expert_axes ? "all but experts" : "all", fmt::to_string(all.shard.size()),
                       all.replicate.size(), fmt::to_string(ranks), ranks);
  }
  if (options.expert_axes) text += expert_line(*options.expert_axes, ranks);
  return text;
}

}  // namespace loom::sharding
