#include <fmt/format.h>

#include "engine/core/error.h"
#include "sharding/pipeline/placed_stages.h"
#include "sharding/pipeline/split.h"

namespace loom::sharding {
namespace {

bool is_uneven(const MegatronSplit& split) {
  return split.num_layers_in_first_pipeline_stage || split.num_layers_in_last_pipeline_stage;
}

std::int64_t counted_extra(const MegatronSplit& split) {
  return static_cast<std::int64_t>(split.account_for_embedding_in_pipeline_split) +
         static_cast<std::int64_t>(split.account_for_loss_in_pipeline_split);
}

void check_options(const MegatronSplit& split) {
  check_pipeline(split.layers, split.ranks, split.chunks.value_or(1));
  if (!is_uneven(split)) return;
  check_size("num_layers_in_first_pipeline_stage", split.num_layers_in_first_pipeline_stage.value_or(1));
  check_size("num_layers_in_last_pipeline_stage", split.num_layers_in_last_pipeline_stage.value_or(1));
  if (counted_extra(split) > 0) {
    config_error(
        "num_layers_in_first_pipeline_stage and num_layers_in_last_pipeline_stage are not allowed together with "
        "account_for_embedding_in_pipeline_split and account_for_loss_in_pipeline_split; write one of the two pairs, "
        "or a pipeline_model_parallel_layout");
  }
  if (split.num_layers_per_virtual_pipeline_stage) {
    config_error(
        "num_layers_per_virtual_pipeline_stage is {}, and num_layers_in_first_pipeline_stage or "
        "num_layers_in_last_pipeline_stage is given, so that chunks differ in size; write the number of chunks of a "
        "rank (num_virtual_stages_per_pipeline_rank) instead",
        *split.num_layers_per_virtual_pipeline_stage);
  }
}

// How many layers a rank between the first and the last has.
std::int64_t middle_layers(const MegatronSplit& split) {
  const std::int64_t first = split.num_layers_in_first_pipeline_stage.value_or(0);
  const std::int64_t last = split.num_layers_in_last_pipeline_stage.value_or(0);
  const std::int64_t rest = split.layers - first - last;
  const std::int64_t ranks = split.ranks - (first > 0 ? 1 : 0) - (last > 0 ? 1 : 0);
  if (ranks < 0) {
    config_error(
        "num_layers_in_first_pipeline_stage {} and num_layers_in_last_pipeline_stage {} need two pipeline ranks, and "
        "there is one; leave them out, or write pipeline_model_parallel_size 2 or more",
        first, last);
  }
  const std::string given = fmt::format(
      "num_layers is {}, and the first and the last pipeline stage have {} of them (num_layers_in_first_pipeline_stage "
      "{}, num_layers_in_last_pipeline_stage {}): {} are left for {} other ranks",
      split.layers, first + last, first, last, rest, ranks);
  if (ranks == 0 && rest != 0) {
    config_error("{}; write two numbers that add up to {}, or more pipeline ranks", given, split.layers);
  }
  if (ranks > 0 && rest <= 0) {
    config_error("{}; write smaller numbers, so that each of them has a layer", given);
  }
  if (ranks > 0 && rest % ranks != 0) {
    config_error("{}, which do not divide them; write num_layers {}, or other numbers for the first and the last stage",
                 given, multiples_beside(rest, ranks, -first - last));
  }
  return ranks > 0 ? rest / ranks : 0;
}

void check_divides(std::int64_t chunks, std::int64_t layers, std::string_view where) {
  if (layers % chunks == 0) return;
  config_error(
      "{} has {} layers, and {} chunks of a rank do not divide them; write {} layers, or a number of chunks "
      "that divides {}",
      where, layers, chunks, multiples_beside(layers, chunks), layers);
}

std::vector<std::int64_t> uneven_counts(const MegatronSplit& split) {
  const std::int64_t middle = middle_layers(split);
  const std::int64_t chunks = split.chunks.value_or(1);
  const std::int64_t first = split.num_layers_in_first_pipeline_stage.value_or(middle);
  const std::int64_t last = split.num_layers_in_last_pipeline_stage.value_or(split.ranks == 1 ? first : middle);
  check_divides(chunks, first, "the first pipeline rank");
  check_divides(chunks, last, "the last pipeline rank");
  check_divides(chunks, middle, "each pipeline rank between the first and the last");
  std::vector<std::int64_t> counts;
  for (std::int64_t stage = 0; stage < split.ranks * chunks; ++stage) {
    const std::int64_t rank = stage % split.ranks;
    const std::int64_t layers = rank == split.ranks - 1 ? last : rank == 0 ? first : middle;
    counts.push_back(layers / chunks);
  }
  return counts;
}

std::vector<std::int64_t> even_counts(const MegatronSplit& split) {
  const std::int64_t extra = counted_extra(split);
  const std::int64_t places = split.layers + extra;
  const std::string counted = extra == 0 ? fmt::format("num_layers is {}", split.layers)
                                         : fmt::format(
                                               "num_layers is {}, and account_for_embedding_in_pipeline_split or "
                                               "account_for_loss_in_pipeline_split count {} more: {}",
                                               split.layers, extra, places);
  if (places % split.ranks != 0) {
    config_error(
        "{}, which {} pipeline ranks do not divide; write num_layers {}, or num_layers_in_first_pipeline_stage, "
        "num_layers_in_last_pipeline_stage or a pipeline_model_parallel_layout",
        counted, split.ranks, multiples_beside(places, split.ranks, extra));
  }
  const std::int64_t chunks = chunks_of(places, split.ranks, split.chunks, split.num_layers_per_virtual_pipeline_stage);
  check_size("the number of stages, ranks times chunks,", split.ranks * chunks);
  check_divides(chunks, places / split.ranks, "each pipeline rank");
  std::vector<std::int64_t> counts(static_cast<std::size_t>(split.ranks * chunks), places / split.ranks / chunks);
  counts.front() -= split.account_for_embedding_in_pipeline_split ? 1 : 0;
  counts.back() -= split.account_for_loss_in_pipeline_split ? 1 : 0;
  if (counts.front() < 0) {
    config_error("{}: the only stage has no room for both; leave one of the two out", counted);
  }
  return counts;
}

}  // namespace

std::vector<StageLayout> split_megatron(const MegatronSplit& split) {
  check_options(split);
  return placed_stages(is_uneven(split) ? uneven_counts(split) : even_counts(split), split.ranks);
}

}  // namespace loom::sharding
