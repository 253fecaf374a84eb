// StepMetrics: the figures of one optimizer step, the same on every rank except for memory.
//
// Skipped   a step whose gradients overflowed under a loss scale: the loss is the loss of its forward, grad_norm is not
//           finite, lr is the rate of the skipped update. An iteration of --iterations-to-skip has no metrics.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace loom::train {

// Figures of the loss function, by name.
using Reports = std::vector<std::pair<std::string, double>>;

// Figures of an evaluation: means over its batches.
struct Evaluation {
  double loss = 0.0;
  Reports reports = {};
};

// The L2 norms of one layer: of its gradients before clipping, and of its parameters after the update.
struct LayerNorms {
  std::string layer = {};
  double grad = 0.0;
  double params = 0.0;
};

struct StepMetrics {
  std::int64_t step = 0;  // optimizer steps done, this one included
  double loss = 0.0;      // mean over the global batch
  double grad_norm = 0.0;
  double lr = 0.0;                    // of this step
  double next_lr = 0.0;               // of the next step, as Megatron's log shows
  bool loss_is_scaled = false;        // --fp16
  double loss_scale = 1.0;            // of the next step, as in Megatron's log; 1 if the loss is not scaled
  bool skipped = false;               // the optimizer did not run
  std::int64_t samples_consumed = 0;  // of the training data, since the start of training, this step included
  std::int64_t samples_skipped = 0;   // of these, the samples of --iterations-to-skip
  double tokens_per_second = 0.0;     // of the whole job
  std::vector<std::pair<std::string, std::int64_t>> peak_memory_bytes = {};  // of the device, by category
  std::int64_t peak_host_memory_bytes = 0;  // of tensors that rank 0 keeps on the host, since its start
  // Tokens that each expert of a layer got, over all layers and ranks; empty: the model has no experts.
  std::vector<std::int64_t> expert_tokens = {};
  std::optional<double> held_out_loss = {};
  Reports held_out_reports = {};  // with held_out_loss
  Reports reports = {};
};

}  // namespace loom::train
