#include "engine/plan/pipeline_split.h"

#include <algorithm>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <utility>

#include "engine/core/error.h"
#include "engine/core/units.h"
#include "models/mixin/fsdp2_mixin.h"
#include "sharding/pipeline/keep_stage.h"

namespace loom::plan {
namespace {

using Layers = std::vector<std::int64_t>;

std::string layout_of(const Layers& layers) {
  std::string text = "E";
  for (std::size_t stage = 0; stage < layers.size(); ++stage) {
    if (stage > 0) text += '|';
    text.append(static_cast<std::size_t>(layers[stage]), 't');
  }
  return text + 'L';
}

void check_split(const train::PipelineParallel& options) {
  const auto refuse = [](std::string_view flag) {
    config_error("--pipeline-split auto and {} both say which layers a stage has; remove one of them", flag);
  };
  if (!options.is_on()) {
    config_error("--pipeline-split is auto, and --pipeline-model-parallel-size is 1; give 2 or more, or remove it");
  }
  if (!options.pipeline_model_parallel_layout.empty()) refuse("--pipeline-model-parallel-layout");
  if (!options.num_layer_list.empty()) refuse("--num-layer-list");
  if (options.num_layers_per_virtual_pipeline_stage > 0) refuse("--num-layers-per-virtual-pipeline-stage");
  if (options.decoder_first_pipeline_num_layers > 0) refuse("--decoder-first-pipeline-num-layers");
  if (options.decoder_last_pipeline_num_layers > 0) refuse("--decoder-last-pipeline-num-layers");
  if (options.pipeline_parallel_schedule_csv) refuse("--pipeline-parallel-schedule-csv");
  const std::string& schedule = options.pipeline_parallel_schedule;
  if (schedule != "ZBVZeroBubble" && schedule != "DualPipeV") return;
  config_error(
      "--pipeline-split auto does not go with --pipeline-parallel-schedule {}, whose stages are of equal "
      "numbers of layers; remove one of them",
      schedule);
}

class SplitSearch {
 public:
  SplitSearch(const train::TrainSections& arguments, const train::PretrainCallbacks& callbacks,
              const virtual_time::HardwareProfile& profile)
      : arguments_(arguments),
        callbacks_(callbacks),
        profile_(profile),
        ranks_(pipeline().pipeline_model_parallel_size) {
    check_split(pipeline());
    pipeline().pipeline_split = train::PipelineSplit::kEqual;
    const int chunks = std::max(1, pipeline().num_virtual_stages_per_pipeline_rank);
    stages_ = static_cast<std::size_t>(ranks_) * static_cast<std::size_t>(chunks);
    shorten_step();
  }

  ChosenSplit run() {
    const Layers equal = equal_numbers();
    const Layers balanced = balanced_numbers(try_split(equal), equal);
    for (const Layers& layers : {balanced, with_last(balanced, 1), with_last(balanced, -1)}) {
      if (!layers.empty() && !is_tried(layers)) try_split(layers);
    }
    const auto better = [](const TriedSplit& a, const TriedSplit& b) {
      if (a.fits != b.fits) return a.fits;
      return a.fits ? a.step_ns < b.step_ns : a.peak_reserved_bytes < b.peak_reserved_bytes;
    };
    result_.chosen = static_cast<std::size_t>(std::ranges::min_element(result_.tried, better) - result_.tried.begin());
    return std::move(result_);
  }

 private:
  train::PipelineParallel& pipeline() { return arguments_.parallel.pipeline; }

  // A step of few micro-batches has the same slowest stage.
  void shorten_step() {
    const auto model = train::provide_model(arguments_, callbacks_);
    layers_ = sharding::pipeline_layers(models::sharded_module(*model));
    pipeline().pipeline_model_parallel_layout = layout_of(equal_numbers());
    const train::TrainingInputs inputs = train::read_inputs(arguments_, callbacks_);
    train::ScheduleOptions& schedule = arguments_.schedule;
    const std::int64_t all = inputs.dims.micro_batches(schedule.global_batch_size, schedule.micro_batch_size);
    const std::int64_t few = std::min<std::int64_t>(all, 2 * ranks_);
    schedule.global_batch_size = static_cast<int>(schedule.global_batch_size / all * few);
  }

  // The first stages have one more where they cannot be equal.
  Layers equal_numbers() const {
    Layers layers(stages_, layers_ / static_cast<std::int64_t>(stages_));
    for (std::size_t stage = 0; stage < static_cast<std::size_t>(layers_) % stages_; ++stage) ++layers[stage];
    return layers;
  }

  // Layers go, one after another, to where the rank (and of these the stage) ends up with the least time; of equals to
  // the last, which has fewer micro-batches in flight.
  Layers balanced_numbers(const StepEstimate& plan, const Layers& equal) const {
    const auto ranks = static_cast<std::size_t>(ranks_);
    std::vector<double> time(ranks), held(ranks);
    for (std::size_t stage = 0; stage < stages_; ++stage) held[stage % ranks] += static_cast<double>(equal[stage]);
    double layer = 0;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const double each = static_cast<double>(plan.pipeline->ranks[rank].compute_ns) / held[rank];
      layer = rank == 0 ? each : std::min(layer, each);
    }
    std::vector<double> of_stage(stages_);
    const auto rest = [&](std::size_t rank) {
      return static_cast<double>(plan.pipeline->ranks[rank].compute_ns) - layer * held[rank];
    };
    of_stage.front() = rest(0);
    of_stage.back() = rest(ranks - 1);
    for (std::size_t rank = 0; rank < ranks; ++rank) time[rank] = rest(rank);
    Layers layers(stages_);
    for (std::int64_t i = 0; i < layers_; ++i) {
      std::size_t best = 0;
      const auto cost = [&](std::size_t stage) {
        return std::pair(time[stage % ranks] + layer, of_stage[stage] + layer);
      };
      for (std::size_t stage = 1; stage < stages_; ++stage) {
        if (cost(stage) <= cost(best)) best = stage;
      }
      ++layers[best];
      time[best % ranks] += layer;
      of_stage[best] += layer;
    }
    return layers;
  }

  // Moves layers of the other stages to the last; nothing where that is not possible.
  static Layers with_last(Layers layers, std::int64_t more) {
    const auto others = std::span(layers).first(layers.size() - 1);
    std::int64_t& other = more > 0 ? *std::ranges::max_element(others) : *std::ranges::min_element(others);
    layers.back() += more;
    other -= more;
    return std::min(layers.back(), other) < 1 ? Layers{} : layers;
  }

  bool is_tried(const Layers& layers) const {
    return std::ranges::find(result_.tried, layers, &TriedSplit::layers) != result_.tried.end();
  }

  StepEstimate try_split(const Layers& layers) {
    pipeline().pipeline_model_parallel_layout = layout_of(layers);
    TriedSplit& tried = result_.tried.emplace_back(TriedSplit{.layers = layers});
    StepEstimate plan;
    try {
      plan = estimate_step(arguments_, callbacks_, profile_);
      tried.fits = true;
    } catch (const OutOfMemoryError&) {
      plan = estimate_step(arguments_, callbacks_, profile_, Capacity::kLifted);
    }
    tried.step_ns = plan.time.step_ns;
    tried.peak_reserved_bytes = plan.memory.peak_reserved_bytes;
    return plan;
  }

  train::TrainSections arguments_;
  const train::PretrainCallbacks& callbacks_;
  const virtual_time::HardwareProfile& profile_;
  const int ranks_;
  std::size_t stages_ = 0;
  std::int64_t layers_ = 0;
  ChosenSplit result_;
};

}  // namespace

std::string ChosenSplit::layout() const { return layout_of(tried.at(chosen).layers); }

std::optional<ChosenSplit> choose_split(const train::TrainSections& arguments,
                                        const train::PretrainCallbacks& callbacks,
                                        const virtual_time::HardwareProfile& profile) {
  if (arguments.parallel.pipeline.pipeline_split != train::PipelineSplit::kAuto) return std::nullopt;
  return SplitSearch(arguments, callbacks, profile).run();
}

std::string to_text(const ChosenSplit& split) {
  std::string text = "layers of the stages, by planned steps\n";
  for (std::size_t i = 0; i < split.tried.size(); ++i) {
    const TriedSplit& tried = split.tried[i];
    text += fmt::format("{} {}: step {}, peak reserved {}{}\n", i == split.chosen ? " *" : "  ",
                        fmt::join(tried.layers, ","), time_text(tried.step_ns), memory_text(tried.peak_reserved_bytes),
                        tried.fits ? "" : ", does not fit");
  }
  return text;
}

nlohmann::ordered_json to_json(const ChosenSplit& split) {
  nlohmann::ordered_json json{{"layout", split.layout()}, {"tried", nlohmann::ordered_json::array()}};
  for (const TriedSplit& tried : split.tried) {
    json["tried"].push_back({{"layers", tried.layers},
                             {"step_ns", tried.step_ns},
                             {"peak_reserved_bytes", tried.peak_reserved_bytes},
                             {"fits", tried.fits}});
  }
  return json;
}

void apply(const ChosenSplit& split, train::PipelineParallel& options) {
  options.pipeline_split = train::PipelineSplit::kEqual;
  options.pipeline_model_parallel_layout = split.layout();
}

}  // namespace loom::plan
