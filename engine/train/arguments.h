// TrainArguments: the job as the callbacks of a training program read it, by the names of the flags; Megatron's
// get_args().
//
// Lifetime  it refers to the job, which outlives the run. The copy for the provider of the data lives as long as the
//           loaders; other callbacks copy it to keep it.
// Units     iterations are optimizer steps; batch sizes are sequences.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "engine/data/options.h"

namespace loom::train {

struct TrainSections;

class TrainArguments {
 public:
  explicit TrainArguments(const TrainSections& sections);

  // The section for the loaders of engine/data.
  operator const data::DataOptions&() const { return data; }

  const int& ranks;
  const std::optional<std::filesystem::path>& model_config;
  const std::optional<std::filesystem::path>& init_from_hf_path;
  const std::vector<std::filesystem::path>& data_path;
  const int& seq_length;
  const bool& bytes_as_tokens;
  const std::uint64_t& seed;
  const int& micro_batch_size;
  const int& global_batch_size;
  const std::int64_t& train_iters;
  const std::int64_t& eval_iters;
  const double& lr;
  const bool& use_torch_fsdp2;
  const std::optional<std::filesystem::path>& save;
  const data::DataOptions& data;
  const TrainSections& job;  // everything else, by section
};

}  // namespace loom::train
