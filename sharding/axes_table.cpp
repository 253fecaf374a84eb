#include "sharding/axes_table.h"

#include <fmt/format.h>

#include "engine/dist/context_attention.h"

namespace loom::sharding {
namespace {

std::string axis_line(std::string_view name, int ranks, int place, std::string_view about) {
  return fmt::format("{:<12}{:>8}{:>12}  {}\n", name, ranks, place, about);
}

std::string class_line(std::string_view name, const FsdpAxes& axes, int divisor) {
  const int parts = axes.parts ? axes.parts->size() : 1;
  const std::string sharded =
      parts == 1 ? fmt::format("{}", axes.shard.size()) : fmt::format("ep {} x efsdp {}", parts, axes.shard.size());
  return fmt::format("{:<20}{:>20}{:>12}{:>15}{:>12}\n", name, sharded, axes.replicate.size(),
                     axes.shard.size() * axes.replicate.size(), divisor);
}

}  // namespace

std::string axes_table(const FullyShardOptions& options) {
  if (!options.context && !options.expert_axes) return "";
  const FsdpAxes& all = options.axes;
  const int ranks = all.shard.size() * all.replicate.size();
  const int rank = all.replicate.rank() * all.shard.size() + all.shard.rank();
  std::string text = fmt::format("{:<12}{:>8}{:>12}\n", "axis", "ranks", "this rank");
  const dist::ContextDegrees degrees = options.context ? options.context->degrees() : dist::ContextDegrees{};
  text += axis_line("data", ranks / degrees.ranks(), rank / degrees.ranks(), "samples of their own");
  if (options.context) {
    text += axis_line("ring", degrees.ring, options.context->ring.rank(), "share sequences: keys and values travel");
    text += axis_line("ulysses", degrees.ulysses, options.context->ulysses.rank(), "share sequences: heads travel");
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
  text += class_line(options.expert_axes ? "all but experts" : "all", all, ranks);
  if (options.expert_axes) text += class_line("experts", *options.expert_axes, ranks);
  return text;
}

}  // namespace loom::sharding
