// OptimizerOptions: the optimizer that updates the parameters, its constants, and how gradients are scaled and
// clipped first. Names and meanings are Megatron's where it has them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/nn/optim/muon_options.h"
#include "engine/train/loss_scaler.h"

namespace loom::train {

// --optimizer. kMuon: Muon for hidden matrices, AdamW for the rest. kAdamSwap: AdamW, its moments on the device only
// while they are used (nn/optim/swapped_adamw.h).
enum class OptimizerKind : std::uint8_t { kAdam, kSgd, kMuon, kAdamSwap };

// Optimizer state and its updates in host memory.
struct HostOptimizerOptions {
  double mem_fraction_static = 0.8;  // for kAdamSwap: share of the device's unused memory that a batch of moments takes
  bool swap_optimizer = false;       // for kAdam: its moments are swapped in slices
  int swap_optimizer_times = 16;     // number of slices
  // With offload_to_cpu: the host waits for gradients one by one, in the order in which they arrive. None: on with
  // KernelSet::kFast; the other set keeps PyTorch's order of events.
  std::optional<bool> overlap_cpu_optimizer = {};
};

struct OptimizerOptions : HostOptimizerOptions {
  OptimizerKind kind = OptimizerKind::kAdam;
  bool no_weight_decay_on_norms_and_biases = false;  // parameters of one dim, and biases, do not decay
  std::vector<std::string> no_decay_modules;         // classes; no parameter below them decays (parameter_rules.h)
  std::vector<std::string> no_decay_params;          // texts that mark the path of a parameter without decay
  std::vector<std::string> lr_scaling_plan;          // REGEX=FACTOR, on the learning rate of single parameters
  double clip_grad = 1.0;                            // largest gradient norm; 0 = no clipping
  double sgd_momentum = 0.9;
  double sgd_dampening = 0.0;
  bool sgd_nesterov = false;
  nn::MuonOptions muon = {};
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.999;
  double adam_eps = 1e-8;

  bool check_for_nan_in_loss_and_grad = true;  // a loss or gradient norm that is NaN or Inf ends the run
  bool fp16 = false;                           // the loss is scaled; with FSDP2, the file must set param_dtype: fp16
  LossScaleOptions loss_scale;
};

}  // namespace loom::train
