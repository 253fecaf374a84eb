#include <algorithm>
#include <fmt/format.h>
#include <numeric>
#include <set>

#include "engine/core/error.h"
#include "engine/core/parse_number.h"
#include "engine/core/shown_text.h"
#include "sharding/pipeline/placed_stages.h"
#include "sharding/pipeline/split.h"

namespace loom::sharding {
namespace {

// "1,3,2,2"; blanks around a number are allowed.
std::vector<std::int64_t> numbers_of(std::string_view name, std::string_view text) {
  std::vector<std::int64_t> numbers;
  for (std::string_view rest = text;;) {
    const std::size_t comma = rest.find(',');
    std::string_view word = rest.substr(0, comma);
    word.remove_prefix(std::min(word.find_first_not_of(' '), word.size()));
    word = word.substr(0, word.find_last_not_of(' ') + 1);
    const auto number = parse_number<std::int64_t>(word);
    if (!number || *number < 0 || *number > kLargestPipeline) {
      config_error("{} is '{}', and '{}' in it is no number from 0 to {}; write numbers with commas between them", name,
                   shown_text(text), shown_text(word), kLargestPipeline);
    }
    numbers.push_back(*number);
    if (comma == std::string_view::npos) return numbers;
    rest.remove_prefix(comma + 1);
  }
}

bool is_dualpipev(const MindSpeedSplit& split) {
  if (split.schedules_method.empty()) return false;
  if (split.schedules_method == "dualpipev") return true;
  config_error("schedules_method is '{}'; write dualpipev, or leave it out", shown_text(split.schedules_method));
}

std::int64_t mindspeed_chunks(const MindSpeedSplit& split) {
  if (!is_dualpipev(split)) {
    return chunks_of(split.layers, split.ranks, split.chunks, split.num_layers_per_virtual_pipeline_stage);
  }
  if (split.num_layers_per_virtual_pipeline_stage) {
    config_error(
        "num_layers_per_virtual_pipeline_stage is {}, and schedules_method dualpipev has two chunks a rank; "
        "leave one of the two out",
        *split.num_layers_per_virtual_pipeline_stage);
  }
  if (split.chunks.value_or(2) != 2) {
    config_error("schedules_method dualpipev has two chunks a rank, and {} are requested; leave their number out",
                 *split.chunks);
  }
  return 2;
}

std::vector<std::int64_t> listed_counts(const MindSpeedSplit& split, std::int64_t chunks) {
  const std::string text = shown_text(split.num_layer_list);
  if (chunks > 1) {
    config_error(
        "num_layer_list '{}' is for one chunk a rank, and there are {}; leave it out, or write "
        "pipeline_num_transformer_layers with {} numbers a rank",
        text, chunks, chunks);
  }
  if (!split.noop_layers.empty()) {
    config_error("num_layer_list '{}' has no effect where noop_layers is given ('{}'); leave one of the two out", text,
                 shown_text(split.noop_layers));
  }
  const std::vector<std::int64_t> counts = numbers_of("num_layer_list", split.num_layer_list);
  if (std::ssize(counts) != split.ranks) {
    config_error("num_layer_list '{}' has {} numbers, and pipeline_model_parallel_size is {}; write one number a rank",
                 text, counts.size(), split.ranks);
  }
  const std::int64_t sum = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  if (sum != split.layers) {
    config_error("num_layer_list '{}' adds up to {}, and num_layers is {}; write numbers that add up to {}", text, sum,
                 split.layers, split.layers);
  }
  return counts;
}

std::vector<std::int64_t> even_places(const MindSpeedSplit& split, std::int64_t chunks) {
  const std::int64_t stages = split.ranks * chunks;
  if (split.layers % stages == 0) {
    return std::vector<std::int64_t>(static_cast<std::size_t>(stages), split.layers / stages);
  }
  config_error(
      "num_layers is {}, which {} stages ({} pipeline ranks, {} a rank) do not divide; write num_layers {} with "
      "noop_layers for places without a layer, or {}",
      split.layers, stages, split.ranks, chunks, multiples_beside(split.layers, stages),
      chunks == 1 ? "num_layer_list with the layers of every rank"
                  : "pipeline_num_transformer_layers with the layers of every chunk");
}

// Takes the places without a layer out of the counts of the stages.
void take_out_noops(const MindSpeedSplit& split, std::vector<std::int64_t>& counts) {
  if (split.noop_layers.empty()) return;
  const std::int64_t per_stage = counts.front();
  const std::vector<std::int64_t> given = numbers_of("noop_layers", split.noop_layers);
  for (const std::int64_t place : std::set<std::int64_t>(given.begin(), given.end())) {
    if (place >= split.layers) {
      config_error("noop_layers is '{}', and num_layers is {}; write places from 0 to {}",
                   shown_text(split.noop_layers), split.layers, split.layers - 1);
    }
    --counts[static_cast<std::size_t>(place / per_stage)];
  }
}

}  // namespace

std::vector<StageLayout> split_mindspeed(const MindSpeedSplit& split) {
  check_pipeline(split.layers, split.ranks, split.chunks.value_or(1));
  const std::int64_t chunks = mindspeed_chunks(split);
  check_pipeline(split.layers, split.ranks, chunks);
  std::vector<std::int64_t> counts =
      split.num_layer_list.empty() ? even_places(split, chunks) : listed_counts(split, chunks);
  take_out_noops(split, counts);
  return placed_stages(counts, split.ranks, is_dualpipev(split) ? Placement::kV : Placement::kLoop);
}

}  // namespace loom::sharding
