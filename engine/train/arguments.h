// TrainArguments: what one training job is, room by room: each base is the options of one room, and functions of that
// room take it alone.
//
// Units    iterations are optimizer steps; batch sizes are sequences.
// Filled   engine/cli/arguments.h makes it from a command line, fills in the defaults that depend on others, and checks
//          everything that flags alone can tell. Files are read by the rooms that need them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "engine/data/options.h"
#include "engine/launch/options.h"
#include "engine/nn/functional.h"
#include "engine/train/checkpoint_options.h"
#include "engine/train/device_memory_options.h"
#include "engine/train/exit_decision.h"
#include "engine/train/log_options.h"
#include "engine/train/loss_scaler.h"
#include "engine/train/lr_schedule.h"
#include "engine/train/preference_loss.h"
#include "models/decoder/layer_recompute_options.h"
#include "models/hub/options.h"
#include "offload/swap_options.h"
#include "sharding/config/recomputed_module.h"
#include "sharding/optim/muon_options.h"

namespace loom::train {

// Kernels, and with them the layout of gathers and the optimizer's temporaries: fused ones, or composed as PyTorch
// eager composes them.
enum class KernelSet : std::uint8_t { kFast, kPytorch };

// Which optimizer updates the parameters (--optimizer); kMuon: the hidden matrices, and AdamW the rest. kAdamSwap:
// AdamW whose moments are on the device only while they are used (nn/optim/swapped_adamw.h).
enum class OptimizerKind : std::uint8_t { kAdam, kSgd, kMuon, kAdamSwap };

// Optimizer state and its updates in host memory.
struct HostOptimizerOptions {
  double mem_fraction_static = 0.8;  // of kAdamSwap: share of the device's unused memory that a batch of moments takes
  bool swap_optimizer = false;       // of kAdam: its moments are swapped in slices
  int swap_optimizer_times = 16;     // how many
  // With offload_to_cpu: gradients are waited for one by one, in the order in which they land on the host. None: with
  // KernelSet::kFast; the other set keeps PyTorch's order of events.
  std::optional<bool> overlap_cpu_optimizer = {};
};

// The optimizer, its schedule and the batch of a step; when the run saves and ends.
struct TrainerOptions : EndOptions, HostOptimizerOptions {
  int micro_batch_size = 1;   // sequences of one forward/backward on a rank
  int global_batch_size = 0;  // sequences of a step on all ranks; filled in: default micro_batch_size * ranks

  std::int64_t train_iters = 100;  // filled in with train_samples: the whole batches in it
  // Above 0: the lengths of the run and of its schedule are those in samples below, and not those in iterations.
  std::int64_t train_samples = 0;
  std::vector<std::int64_t> iterations_to_skip = {};  // from 1; ascending, each once
  double lr = 3e-4;
  double min_lr = 0.0;
  LrDecayStyle lr_decay_style = LrDecayStyle::kLinear;
  std::int64_t lr_decay_iters = 0;    // filled in: default train_iters
  std::int64_t lr_decay_samples = 0;  // filled in: default train_samples
  WsdDecayStyle lr_wsd_decay_style = WsdDecayStyle::kExponential;
  std::int64_t lr_wsd_decay_iters = 0;  // the last part of WSD
  std::int64_t lr_wsd_decay_samples = 0;
  std::int64_t lr_warmup_iters = 0;
  std::int64_t lr_warmup_samples = 0;
  std::optional<double> lr_warmup_fraction = {};  // of the decay's length; in the place of the two above
  double lr_warmup_init = 0.0;
  bool override_opt_param_scheduler = false;        // of a run that goes on, the command line's schedule holds
  bool use_checkpoint_opt_param_scheduler = false;  // or the checkpoint's; not both

  double weight_decay = 0.01;
  WeightDecayIncrStyle weight_decay_incr_style = WeightDecayIncrStyle::kConstant;
  std::optional<double> start_weight_decay = {};  // these two exactly where the style is not constant
  std::optional<double> end_weight_decay = {};
  bool no_weight_decay_on_norms_and_biases = false;  // parameters of one dim, and biases, then do not decay
  double clip_grad = 1.0;                            // largest gradient norm; 0 = no clipping
  OptimizerKind optimizer = OptimizerKind::kAdam;
  double sgd_momentum = 0.9;
  double sgd_dampening = 0.0;
  bool sgd_nesterov = false;
  sharding::MuonOptions muon = {};
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.999;
  double adam_eps = 1e-8;

  bool check_for_nan_in_loss_and_grad = true;  // a loss or gradient norm that is NaN or Inf ends the run
  bool fp16 = false;                           // the loss is scaled; with FSDP2, the file has to say param_dtype: fp16
  LossScaleOptions loss_scale;

  KernelSet kernels = KernelSet::kFast;
  std::int64_t loss_chunk_size = 0;  // 0: the logits of all tokens exist at once
  nn::KernelOptions fused;           // all on with KernelSet::kFast, by flag with the other

  bool skip_train = false;  // evaluate the held-out and the test data, and take no step
  std::int64_t eval_interval = 100;
  std::int64_t eval_iters = 10;  // batches of one evaluation; 0 = no evaluation
};

// The fsdp2_config.yaml of a job.
struct ShardingOptions {
  bool use_torch_fsdp2 = false;
  std::optional<std::filesystem::path> fsdp2_config_path;  // given exactly when use_torch_fsdp2 is
  bool bf16 = false;  // --bf16 of launch scripts: the file has to say param_dtype: bf16
  // Recompute of a decoder's layers, and the names of the flags that ask for it: refused beside recompute_modules of
  // that file (recompute_flags.h).
  models::LayerRecompute recompute_layers;
  bool recompute_activations = false;  // the same as kSelective, which it is filled in as
  std::vector<std::string> megatron_recompute_flags;
  // In the place of recompute_keep and recompute_every of that file; kNone and 0: not given.
  sharding::RecomputeKeep recompute_keep = sharding::RecomputeKeep::kNone;
  int recompute_every = 0;
};

// In which type --save writes floating weights. kAsLoaded: those that were loaded as bf16 or fp16 are written so again,
// all others as they were trained.
enum class SaveDType : std::uint8_t { kAsLoaded, kFp32, kBf16 };

// What the loss prefers which answers by (--stage dpo, simpo).
struct PreferenceArguments {
  PreferenceOptions dpo;
  PreferenceOptions simpo = {.beta = 2.5, .simpo = true};
  PreferenceOptions preference;                          // filled in: that of --stage
  std::optional<std::filesystem::path> ref_model;        // Hugging Face folder of the reference model
  std::optional<std::filesystem::path> ref_logps_cache;  // file of its log-probabilities, in the place of the model
};

struct TrainArguments : launch::LaunchOptions,
                        data::DataOptions,
                        models::ModelOptions,
                        TrainerOptions,
                        DeviceMemoryOptions,
                        ShardingOptions,
                        CheckpointOptions,
                        LogOptions,
                        offload::SwapOptions,
                        PreferenceArguments {
  std::optional<std::filesystem::path> save;  // folder of the trained model or of checkpoints; none = not saved
  SaveDType save_dtype = SaveDType::kAsLoaded;
  std::filesystem::path metrics_path;  // filled in: default metrics.jsonl in `save` or the current folder
};

}  // namespace loom::train
