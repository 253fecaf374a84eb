// PipelineParallel: how a job is cut into the stages of a pipeline, by the flags of Megatron and MindSpeed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace loom::train {

// How layers are shared out where no flag says it.
enum class PipelineSplit : std::uint8_t {
  kEqual,
  kAuto,  // by time and memory of planned steps (engine/plan/pipeline_split.h), before the job is read
};

struct PipelineParallel {
  int pipeline_model_parallel_size = 1;         // ranks of a pipeline; 1: there is none
  std::string pipeline_parallel_schedule = {};  // torch's name; empty: 1F1B, with several stages a rank Interleaved1F1B
  // An order of the user's own instead (schedule/pipeline_csv.h).
  std::optional<std::filesystem::path> pipeline_parallel_schedule_csv = {};
  int num_virtual_stages_per_pipeline_rank = 0;   // stages of a rank; 0: not given
  int num_layers_per_virtual_pipeline_stage = 0;  // layers of a stage instead; 0: not given
  PipelineSplit pipeline_split = PipelineSplit::kEqual;
  std::string num_layer_list = {};                  // "1,3,2,2": layers of each rank
  std::string pipeline_model_parallel_layout = {};  // "Et|tt|tL"
  int decoder_first_pipeline_num_layers = 0;        // of the first rank; 0: not given
  int decoder_last_pipeline_num_layers = 0;         // of the last one

  bool is_on() const { return pipeline_model_parallel_size > 1; }
};

}  // namespace loom::train
