// A case of a reference, trained by the trainer on a mesh with stages. For parity programs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "engine/dist/context_layout.h"
#include "engine/launch/run_ranks.h"
#include "engine/nn/optim/adamw_rule.h"
#include "engine/train/parallel_dims.h"
#include "engine/train/trainer.h"

namespace loom::test {

struct StagedRun {
  std::filesystem::path folder;  // a decoder, its weights and tokens.safetensors
  train::ParallelDegrees degrees;
  dist::ContextDegrees context;  // of the ranks of degrees.cp
  int ep = 1;                    // ranks of a stage that share the experts
  bool sequence_parallel = false;
  std::string schedule = "1F1B";
  std::int64_t stages_per_rank = 1;
  std::vector<std::int64_t> layers = {};  // of each stage; empty: even
  std::int64_t micro_batches = 1;
  bool reshards = true;
  std::int64_t steps = 2;
  nn::AdamWOptions adamw;
  double clip_grad = 1.0;
};

// Of all stages; gradients after they were clipped.
struct StagedResults {
  std::vector<double> loss, grad_norm;
  std::map<std::string, double> step1_grad_norm, final_weight_norm;
  std::map<std::string, std::vector<float>> buffers;  // persistent ones, at the end
};

using RunRanks = std::function<void(int ranks, const launch::RankMain& main)>;
// After the last step, on every rank; several at once where ranks are threads.
using EndOfRank = std::function<void(train::Trainer& trainer, int rank, const device::Recording& second_step)>;

StagedResults train_staged(const StagedRun& run, const RunRanks& run_ranks, const EndOfRank& at_end = nullptr);

// The norm over the whole tensors of what `pick` gives for each parameter's shard.
std::map<std::string, double> norms_of_parameters(nn::Module& model, const std::function<Tensor(const Tensor&)>& pick);

}  // namespace loom::test
