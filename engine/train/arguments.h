// The command lines: `shardloom train ...`, `shardloom plan ...`, `shardloom generate ...`, and that of a pretrain
// program (pretrain.h).
//
// Names    Megatron-LM's where Megatron has the flag; the meaning is then the same. Underscores may stand for the
//          dashes, as in torchrun. Flags of launch scripts that nothing here depends on are accepted
//          (foreign_flags.cpp).
// Units    iterations are optimizer steps; batch sizes are sequences.
// Errors   ConfigError in one line: flag, value, what is allowed, nearest spelling. The program prints it and exits
// with kExitUsage.
//          Everything that flags alone can tell is checked here, before anything is allocated; files are read by who
//          needs them.
// Threads  none are started; nothing here calls exit().
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "engine/train/lr_schedule.h"

namespace loom::train {

inline constexpr int kExitUsage = 2;

enum class DeviceExecutor { kThreaded, kInline };
enum class KernelGrain { kFast, kPytorch };

// How much a profile holds: 0 what runs on the streams, kernels in one piece, collectives with their ranks; 1 each kernel
// too; 2 also shapes, the waits of streams, and memory.
enum class ProfileLevel : std::uint8_t { kLevel0, kLevel1, kLevel2 };

// --profile and its kin, with MindSpeed's meanings and defaults (profiler.h).
struct ProfileArguments {
  bool enabled = false;
  std::int64_t step_start = 10;  // first step collected, counted from 0 as Megatron does
  std::int64_t step_end = 12;    // step before which collection ends
  ProfileLevel level = ProfileLevel::kLevel0;
  bool with_cpu = false;       // what the host does too
  bool with_stack = false;     // call sites: the modules that were running
  bool with_memory = false;    // as in level 2
  bool record_shapes = false;  // as in level 2
  std::filesystem::path save_path = "./profile_dir";
  std::vector<int> ranks{0};          // collected
  std::optional<std::string> device;  // a device profile: virtual time beside the wall clock's
};

struct TrainArguments {
  // Model. `shardloom train` is given exactly one of the first two.
  std::optional<std::filesystem::path> model_config;       // a shape; fresh weights. `shardloom train` only
  std::optional<std::filesystem::path> init_from_hf_path;  // folder with config.json and safetensors
  // Where an embedding and the output layer hold one parameter, each gets its own, loaded from the same weights.
  bool untie_embeddings_and_output_weights = false;
  bool downcast_to_bf16 = false;  // loaded fp32 weights are rounded to bf16 once; they stay fp32
  // Accepted as MindSpeed has it; it changes nothing: models are always built without bytes.
  bool init_model_with_meta_device = false;

  // Data
  std::vector<std::filesystem::path> data_path;  // `shardloom train`: at least one
  int seq_length = 128;                          // tokens of a sequence
  double held_out_fraction = 0.05;               // share of the data kept for evaluation, [0, 1); 0 = no evaluation

  // Batch
  int micro_batch_size = 1;   // sequences of one forward/backward on a rank
  int global_batch_size = 0;  // sequences of a step on all ranks; filled in: default micro_batch_size * ranks

  // Schedule
  std::int64_t train_iters = 100;
  double lr = 3e-4;
  double min_lr = 0.0;
  LrDecayStyle lr_decay_style = LrDecayStyle::kLinear;
  std::int64_t lr_decay_iters = 0;  // filled in: default train_iters
  std::int64_t lr_warmup_iters = 0;

  // Optimizer (AdamW)
  double weight_decay = 0.01;
  double clip_grad = 1.0;  // largest gradient norm; 0 = no clipping
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.999;
  double adam_eps = 1e-8;

  // Sharding
  bool use_torch_fsdp2 = false;
  std::optional<std::filesystem::path> fsdp2_config_path;  // given exactly when use_torch_fsdp2 is
  std::vector<std::string>
      megatron_recompute_flags;  // --recompute-*: taken to be refused beside that file (recompute_flags.h)

  // torch_dcp or torch_dist, as MindSpeed has it. Neither is written yet: refused together with `save`.
  std::optional<std::string> ckpt_format;

  // Execution
  // Megatron's --distributed-backend, accepted so that launch commands work unchanged; it changes nothing. The guide
  // asks for npu:hccl,cpu:gloo under offload_to_cpu because PyTorch's device backend cannot reduce host memory; the
  // groups here can.
  std::string distributed_backend = "nccl";
  int ranks = 1;            // W: --nproc-per-node, or what the MPI launcher started
  int compute_threads = 1;  // of one rank; filled in: default cores / ranks of this node, at least 1
  DeviceExecutor device_executor = DeviceExecutor::kThreaded;
  KernelGrain kernel_grain = KernelGrain::kFast;
  bool use_fused_rmsnorm = true;  // these five: always in the fast grain, by flag in the other
  bool use_fused_swiglu = true;
  bool use_fused_rotary_pos_emb = true;
  bool use_flash_attn = true;
  bool cross_entropy_loss_fusion = true;
  int distributed_timeout_minutes = 10;
  std::uint64_t seed = 1234;

  // Output
  std::optional<std::filesystem::path> save;  // folder of the trained model; none = not saved
  std::filesystem::path metrics_path;         // filled in: default metrics.jsonl in `save` or the current folder
  std::int64_t log_interval = 10;
  std::int64_t eval_interval = 100;
  std::int64_t eval_iters = 10;  // batches of one evaluation; 0 = no evaluation
  bool print_schedule = false;   // the order of events of the second step, or of the only one
  ProfileArguments profile;
  int sample_bytes = 0;  // length of the text generated after training; 0 = none. `shardloom train` only
  std::string prompt;    // the text it continues. `shardloom train` only
  std::optional<std::filesystem::path> report;  // an HTML page of the run or plan; none = not written
  std::string report_device = "cpu";            // the profile that times a run's recorded step; --device in plans

  std::vector<std::string> command_line;  // the words as given, without the program
};

struct GenerateArguments {
  std::filesystem::path model_dir;
  std::string prompt;
  int max_new_tokens = 64;
  double temperature = 0.0;  // 0 = greedy
  int top_k = 0;             // tokens drawn from; 0 = all
  std::uint64_t seed = 1234;
};

// `shardloom plan`: the training flags, and what is planned with them.
struct PlanArguments {
  enum class Fit : std::uint8_t { kNothing, kMicroBatch, kWorldSize };

  TrainArguments train;                        // ranks: --world-size; data and outputs of training are not used
  std::string device = "h200";                 // a profile: a file, or the name of one in configs/devices
  std::optional<std::filesystem::path> json;   // where the plan is written as JSON; "-": standard output, alone
  std::optional<std::filesystem::path> trace;  // where the step's virtual time is written for Perfetto
  bool sweep = false;       // try sharding sizes, reshard, recompute, prefetch and micro-batches; rank those that fit
  Fit fit = Fit::kNothing;  // search the largest micro-batch, or the smallest world, that fits
};

// Flags a pretrain program adds to the loop's own (pretrain.h). The variables outlive the parse, which writes them;
// what they hold now is the default that --help shows.
class ExtraArguments {
 public:
  virtual ~ExtraArguments() = default;

  // The flags added from here on stand under this heading in --help.
  virtual void group(const std::string& heading) = 0;
  virtual void whole(const std::string& flag, std::int64_t& value, std::int64_t least, const std::string& about) = 0;
  virtual void real(const std::string& flag, double& value, const std::string& about) = 0;  // finite
  virtual void text(const std::string& flag, std::string& value, const std::string& about) = 0;
  virtual void toggle(const std::string& flag, bool& value, const std::string& about) = 0;
  // The flags of a command line that runs, shown at the end of --help behind the program's name.
  virtual void example(const std::string& flags) = 0;
};

// The command line asked for help: print `text` to standard output and end with `code`.
struct EarlyExit {
  int code = 0;
  std::string text;
};

using ParsedCommand = std::variant<TrainArguments, GenerateArguments, PlanArguments, EarlyExit>;

// What the defaults depend on besides the command line.
struct LaunchContext {
  int cores = 1;            // that this process may run on
  int mpi_ranks = 0;        // started by mpirun or srun; 0 = no such launcher, ranks are threads of this process
  int mpi_local_ranks = 0;  // of these, on this node

  // From the affinity mask and the launcher's environment variables.
  static LaunchContext detect();
};

// Of the shardloom program; argv[0] is its name. Throws ConfigError.
ParsedCommand parse_arguments(int argc, const char* const* argv,
                              const LaunchContext& context = LaunchContext::detect());

// Of a program of pretrain(): the flags of `shardloom train` except those that are its own, and what `extra` adds.
using ParsedProgram = std::variant<TrainArguments, EarlyExit>;
ParsedProgram parse_program_arguments(int argc, const char* const* argv,
                                      const std::function<void(ExtraArguments&)>& extra,
                                      const LaunchContext& context = LaunchContext::detect());

}  // namespace loom::train
