#include "engine/cli/arguments.h"

#include <sstream>

#include "engine/cli/flags.h"
#include "engine/cli/foreign_flags.h"
#include "engine/config/share_folder.h"
#include "engine/core/rounding.h"

namespace loom::cli {
namespace {

bool positive(double x) { return x > 0; }
bool not_negative(double x) { return x >= 0; }
bool below_one(double x) { return x >= 0 && x < 1; }

bool finite(double) { return true; }

// --- The flags of training

// Whose command line it is: `shardloom train` has a few flags that other programs of pretrain() have not.
enum class Program { kShardloomTrain, kShardloomPlan, kUsersTrain, kUsersPlan };

bool is_users(Program program) { return program == Program::kUsersTrain || program == Program::kUsersPlan; }
bool plans(Program program) { return program == Program::kShardloomPlan || program == Program::kUsersPlan; }

void add_model_and_data(Flags& flags, Program program, ProgramArguments& a) {
  const bool own = !is_users(program);
  flags.group(own ? "Model (one of the first two)" : "Model");
  if (own) {
    flags.text("--model-config", "FILE", a.model_config,
               "Shape of a model that starts with fresh weights: a file, or a name in configs/models");
  }
  flags.text("--init-from-hf-path", "DIR", a.init_from_hf_path, "Model to start from: config.json and safetensors");
  flags.toggle("--untie-embeddings-and-output-weights", a.untie_embeddings_and_output_weights,
               "Separate the output layer from the embedding it is tied to; both start with the same weights");
  flags.toggle("--downcast-to-bf16", a.downcast_to_bf16,
               "Round the loaded weights to bf16 once; they stay fp32. Needs --init-from-hf-path");
  flags.toggle("--init-model-with-meta-device", a.init_model_with_meta_device,
               "Accepted as MindSpeed has it; models are always built so");
  flags.group("Data");
  flags.paths("--data-path", "PATH", a.data_path, "Training data, one or more");
  flags.toggle("--bytes-as-tokens", a.bytes_as_tokens,
               "Train on bytes although the model's folder has a tokenizer (tokenizers are not built)");
  flags.whole("--seq-length", a.seq_length, 1, "Tokens of a sequence");
  flags.real("--held-out-fraction", a.held_out_fraction, below_one, "a number from 0 to below 1",
             "Share of the data kept for evaluation; 0 = no evaluation");
}

void add_batch_and_schedule(Flags& flags, ProgramArguments& a) {
  flags.group("Batch and schedule");
  flags.whole("--micro-batch-size", a.micro_batch_size, 1, "Sequences of one forward and backward on a rank");
  flags.whole("--global-batch-size", a.global_batch_size, 1, "Sequences of a step on all ranks",
              "micro-batch-size x ranks");
  flags.whole("--train-iters", a.train_iters, 1, "Optimizer steps");
  flags.real("--lr", a.lr, positive, "a number above 0", "Largest learning rate");
  flags.real("--min-lr", a.min_lr, not_negative, "a number of at least 0", "Learning rate at the end of the decay");
  flags.choice<train::LrDecayStyle>("--lr-decay-style", a.lr_decay_style,
                                    {{"constant", train::LrDecayStyle::kConstant},
                                     {"linear", train::LrDecayStyle::kLinear},
                                     {"cosine", train::LrDecayStyle::kCosine},
                                     {"inverse-square-root", train::LrDecayStyle::kInverseSquareRoot}},
                                    "How the learning rate falls after the warm-up");
  flags.whole("--lr-decay-iters", a.lr_decay_iters, 1, "Steps until --min-lr is reached, warm-up included",
              "train-iters");
  flags.whole("--lr-warmup-iters", a.lr_warmup_iters, 0, "Steps in which the learning rate rises from 0");
}

void add_optimizer(Flags& flags, ProgramArguments& a) {
  flags.group("Optimizer (AdamW)");
  flags.real("--weight-decay", a.weight_decay, not_negative, "a number of at least 0",
             "Decay of the weights, times lr");
  flags.toggle("--no-weight-decay-on-norms-and-biases", a.no_weight_decay_on_norms_and_biases,
               "Parameters of one dim, and biases, do not decay");
  flags.real("--clip-grad", a.clip_grad, not_negative, "a number of at least 0",
             "Largest gradient norm; 0 = no clipping");
  flags.toggle("--check-for-nan-in-loss-and-grad,!--no-check-for-nan-in-loss-and-grad",
               a.check_for_nan_in_loss_and_grad,
               "End the run at a loss or gradient norm that is NaN or Inf; on unless --no-... is given");
  flags.real("--adam-beta1", a.adam_beta1, below_one, "a number from 0 to below 1", "Decay of the first moment");
  flags.real("--adam-beta2", a.adam_beta2, below_one, "a number from 0 to below 1", "Decay of the second moment");
  flags.real("--adam-eps", a.adam_eps, positive, "a number above 0", "Added to the root of the second moment");
}

void add_execution(Flags& flags, ProgramArguments& a) {
  flags.group("Sharding");
  flags.toggle("--use-torch-fsdp2", a.use_torch_fsdp2, "Shard the FSDP2 way; needs --fsdp2-config-path");
  flags.text("--fsdp2-config-path,--fsdp2-config", "FILE", a.fsdp2_config_path,
             "fsdp2_config.yaml: a file, or a name in configs/fsdp2");
  flags.group("Schedule");
  flags.toggle("--print-schedule", a.print_schedule,
               "Print what the second step issued, stream by stream, and the wasted prefetches");
  flags.group("Execution");
  flags.choice<std::string>("--distributed-backend", a.distributed_backend,
                            {{"nccl", "nccl"}, {"gloo", "gloo"}, {"npu:hccl,cpu:gloo", "npu:hccl,cpu:gloo"}},
                            "Accepted as Megatron has it; changes nothing here, offload_to_cpu included");
  flags.whole("--nproc-per-node,--local-worker-num", a.ranks, 1, "Ranks, as threads of this process");
  flags.whole("--compute-threads", a.compute_threads, 1, "Threads of one rank", "cores / ranks");
  flags.choice<device::ExecutorKind>(
      "--device-executor", a.device_executor,
      {{"threaded", device::ExecutorKind::kThreaded}, {"inline", device::ExecutorKind::kInline}},
      "Collectives and copies behind the computation, or everything when it is issued; same bits");
  flags.choice<train::KernelSet>("--kernels,--kernel-grain", a.kernels,
                                 {{"fast", train::KernelSet::kFast}, {"pytorch", train::KernelSet::kPytorch}},
                                 "Fused kernels, or composed as PyTorch eager composes them");
  flags.toggle("--use-fused-rmsnorm", a.fused.fused_rmsnorm, "Fused RMS norm; always on with --kernels fast");
  flags.toggle("--use-fused-swiglu", a.fused.fused_swiglu, "Fused SwiGLU; always on with --kernels fast");
  flags.toggle("--use-fused-rotary-pos-emb", a.fused.fused_rotary_pos_emb,
               "Fused rotary embedding; always on with --kernels fast");
  flags.toggle("--use-flash-attn", a.fused.flash_attn, "Flash attention; always on with --kernels fast");
  flags.toggle("--cross-entropy-loss-fusion", a.fused.fused_cross_entropy,
               "Fused cross-entropy; always on with --kernels fast");
  flags.whole("--distributed-timeout-minutes", a.distributed_timeout_minutes, 1, "How long a rank waits for its peers");
  flags.whole("--seed", a.seed, 0, "Seed of weights and data order");
}

void add_output(Flags& flags, Program program, ProgramArguments& a) {
  flags.group("Output");
  flags.text("--save", "DIR", a.save, "Where the trained model is written; not given: nowhere");
  flags.choice<train::SaveDType>("--save-dtype", a.save_dtype,
                                 {{"as-loaded", train::SaveDType::kAsLoaded},
                                  {"fp32", train::SaveDType::kFp32},
                                  {"bf16", train::SaveDType::kBf16}},
                                 "Type of the saved weights; as-loaded: bf16 where they were loaded as bf16");
  flags.optional_choice("--ckpt-format", a.ckpt_format, {"torch_dcp", "torch_dist"},
                        "Accepted as MindSpeed has it; refused with --save until it is built");
  flags.text("--metrics-path", "FILE", a.metrics_path, "One JSON line a step", "metrics.jsonl in --save or here");
  flags.text("--report", "FILE", a.report, "Write an HTML page with charts of the run or plan; it works offline");
  if (!plans(program)) {
    flags.text("--report-device", "PROFILE", a.report_device,
               "Whose virtual time the page shows: a device profile's file, or a name in configs/devices",
               a.report_device);
  }
  flags.whole("--log-interval", a.log_interval, 1, "Steps between printed lines");
  flags.whole("--eval-interval", a.eval_interval, 1, "Steps between evaluations");
  flags.whole("--eval-iters", a.eval_iters, 0, "Batches of one evaluation; 0 = no evaluation");
  if (!plans(program)) {
    flags.toggle("--skip-train", a.skip_train, "Evaluate the held-out data and end; no step is taken");
  }
  if (program != Program::kShardloomTrain) return;
  flags.whole("--sample-bytes", a.sample_bytes, 0, "Length of the text generated after training; 0 = none");
  flags.text("--prompt", "TEXT", a.prompt, "What that text continues");
}

void add_profile(Flags& flags, observe::ProfileOptions& a) {
  flags.group("Profile (ui.perfetto.dev opens it)");
  flags.toggle("--profile", a.enabled, "Write a trace of what ran, and a summary; the flags below need this one");
  flags.whole("--profile-step-start", a.step_start, 0, "First step collected, counted from 0");
  flags.whole("--profile-step-end", a.step_end, 1, "Step before which collection ends");
  flags.choice<observe::ProfileLevel>("--profile-level", a.level,
                                      {{"level0", observe::ProfileLevel::kLevel0},
                                       {"level1", observe::ProfileLevel::kLevel1},
                                       {"level2", observe::ProfileLevel::kLevel2}},
                                      "Streams and collectives; every kernel too; also shapes, waits and memory");
  flags.toggle("--profile-with-cpu", a.with_cpu, "What the host does too");
  flags.toggle("--profile-with-stack", a.with_stack, "The modules that each item ran for");
  flags.toggle("--profile-with-memory", a.with_memory, "Memory by category, also below level2");
  flags.toggle("--profile-record-shapes", a.record_shapes, "Shapes of matrix products, also below level2");
  flags.text("--profile-save-path", "DIR", a.save_path, "Where it is written", a.save_path.string());
  flags.whole_numbers("--profile-ranks", a.ranks, "Ranks collected, one or more");
  flags.text("--profile-device", "PROFILE", a.device,
             "Virtual time on this device beside the wall clock's: a file, or a name in configs/devices");
}

void add_generate(Flags& flags, GenerateArguments& a) {
  flags.group("Model and prompt");
  flags.text("MODEL_DIR", "DIR", a.model_dir, "Folder with config.json and safetensors");
  flags.text("--prompt", "TEXT", a.prompt, "The text to continue");
  flags.toggle("--bytes-as-tokens", a.bytes_as_tokens,
               "Read the prompt as bytes although the folder has a tokenizer (tokenizers are not built)");
  flags.group("Sampling");
  flags.whole("--max-new-tokens", a.max_new_tokens, 1, "Tokens to generate");
  flags.real("--temperature", a.temperature, not_negative, "a number of at least 0", "0 = always the likeliest token");
  flags.whole("--top-k", a.top_k, 0, "Draw from the k likeliest tokens; 0 = from all; needs --temperature");
  flags.whole("--seed", a.seed, 0, "Seed of the draws");
}

// --- Checks over several flags

// False also for a flag this command has not.
bool given(const CLI::App& app, const std::string& name) {
  const CLI::Option* option = app.get_option_no_throw(name);
  return option != nullptr && option->count() > 0;
}

void check_sources(const ProgramArguments& a, Program program) {
  if (a.model_config && a.init_from_hf_path) {
    config_error(
        "--model-config and --init-from-hf-path are both given; keep one: fresh weights or those of the folder");
  }
  if (!a.model_config && !a.init_from_hf_path) {
    config_error("no model is given; use --model-config FILE (fresh weights) or --init-from-hf-path DIR");
  }
  if (a.data_path.empty() && program == Program::kShardloomTrain) {
    config_error("no data is given; use --data-path PATH");
  }
}

void check_weights(const ProgramArguments& a) {
  if (a.downcast_to_bf16 && !a.init_from_hf_path) {
    config_error(
        "--downcast-to-bf16 rounds loaded weights, but none are loaded; add --init-from-hf-path DIR or remove it");
  }
}

void check_checkpoints(const ProgramArguments& a, const ForeignFlags& foreign) {
  if (foreign.load) {
    config_error("--load is {}, but reading {} checkpoints is not built; use --init-from-hf-path DIR", *foreign.load,
                 a.ckpt_format.value_or("torch_dcp and torch_dist"));
  }
  if (!a.ckpt_format) return;
  if (*a.ckpt_format == "torch_dcp" && !a.use_torch_fsdp2) {
    config_error("--ckpt-format is torch_dcp, which goes with --use-torch-fsdp2 only; add it");
  }
  if (a.save) {
    config_error(
        "--ckpt-format is {}, but writing {} checkpoints is not built; leave it out: --save then writes a "
        "Hugging Face folder after training",
        *a.ckpt_format, *a.ckpt_format);
  }
}

void check_sharding(const ProgramArguments& a) {
  if (a.fsdp2_config_path && !a.use_torch_fsdp2) {
    config_error("--fsdp2-config-path is {}, but --use-torch-fsdp2 is not given; add it",
                 a.fsdp2_config_path->string());
  }
  if (a.use_torch_fsdp2 && !a.fsdp2_config_path) {
    config_error("--use-torch-fsdp2 is given without --fsdp2-config-path; add --fsdp2-config-path FILE");
  }
  if (a.bf16 && !a.use_torch_fsdp2) {
    config_error(
        "--bf16 is given without --use-torch-fsdp2, and parameters are fp32 here; add --use-torch-fsdp2 and a file "
        "with "
        "param_dtype: bf16, or remove it");
  }
  if (a.print_schedule && !a.use_torch_fsdp2) {
    config_error("--print-schedule is given, but --use-torch-fsdp2 is not, so nothing is gathered; add it");
  }
}

// What the engine counts with, and what a machine can run: above these, arithmetic or the machine would end.
constexpr std::int64_t kMostRanks = 10'000'000;
constexpr std::int64_t kMostThreadRanks = 1024;
constexpr std::int64_t kMostThreads = 1024;
constexpr std::int64_t kMostBatch = 10'000'000;
constexpr std::int64_t kMostPlannedMicroBatches = 4096;
constexpr std::int64_t kMostSteps = 4'294'967'295;

void check_limit(std::string_view flag, std::int64_t value, std::int64_t most, std::string_view why = "") {
  if (value > most) config_error("{} is {}; use at most {}{}", flag, value, most, why);
}

void check_limits(const ProgramArguments& a) {
  check_limit("--train-iters", a.train_iters, kMostSteps);
  check_limit("--lr-decay-iters", a.lr_decay_iters, kMostSteps);
  check_limit("--eval-iters", a.eval_iters, kMostSteps);
  check_limit("--micro-batch-size", a.micro_batch_size, kMostBatch);
  check_limit("--seq-length", a.seq_length, 1 << 30);
  check_limit("--compute-threads", a.compute_threads, kMostThreads, ", best the cores of this machine");
  check_limit("--distributed-timeout-minutes", a.distributed_timeout_minutes, 60 * 24 * 365, ", a year");
}

// After the ranks and the batch are known.
void check_planned_work(const ProgramArguments& a) {
  check_limit("--world-size", a.ranks, kMostRanks);
  const std::int64_t unit = std::int64_t{a.micro_batch_size} * a.ranks;
  const std::int64_t micro_batches = a.global_batch_size / unit;
  if (micro_batches <= kMostPlannedMicroBatches) return;
  config_error(
      "--global-batch-size is {}, which makes {} micro-batches a step, above the {} that a plan goes through; use at "
      "most {}, or a larger --micro-batch-size or --world-size",
      a.global_batch_size, micro_batches, kMostPlannedMicroBatches, kMostPlannedMicroBatches * unit);
}

void settle_ranks(const CLI::App& app, bool planned, const launch::LaunchContext& context, const ForeignFlags& foreign,
                  ProgramArguments& a) {
  int local_ranks = a.ranks;
  if (!planned && context.mpi_ranks == 0) {
    check_limit("--nproc-per-node", a.ranks, kMostThreadRanks,
                ", as each is a thread; more ranks are processes (mpirun)");
  }
  if (context.mpi_ranks > 0) {
    if (given(app, "--nproc-per-node")) {
      config_error("--nproc-per-node is {}, but the MPI launcher started {} ranks, one a process; leave it out",
                   a.ranks, context.mpi_ranks);
    }
    a.ranks = context.mpi_ranks;
    local_ranks = context.mpi_local_ranks > 0 ? context.mpi_local_ranks : context.mpi_ranks;
  }
  if (foreign.worker_num && *foreign.worker_num != fmt::to_string(a.ranks)) {
    config_error("--worker-num is {}, but {} rank{} run; write --local-worker-num {} beside it, or remove it",
                 *foreign.worker_num, a.ranks, a.ranks == 1 ? "" : "s", *foreign.worker_num);
  }
  if (!given(app, "--compute-threads")) a.compute_threads = std::max(1, context.cores / local_ranks);
}

// `most`: sequences of a step.
void settle_batch(const CLI::App& app, std::int64_t most, ProgramArguments& a) {
  const std::int64_t unit = std::int64_t{a.micro_batch_size} * a.ranks;
  if (unit > most) {
    config_error("--micro-batch-size {} x {} ranks is {} sequences a step, above {}; use less", a.micro_batch_size,
                 a.ranks, unit, most);
  }
  check_limit("--global-batch-size", a.global_batch_size, most);
  if (!given(app, "--global-batch-size")) a.global_batch_size = static_cast<int>(unit);
  if (a.global_batch_size % unit == 0) return;
  const std::int64_t below = a.global_batch_size / unit * unit;
  config_error("--global-batch-size is {}, but --micro-batch-size {} x {} {} needs a multiple of {}; use {}",
               a.global_batch_size, a.micro_batch_size, a.ranks, a.ranks == 1 ? "rank" : "ranks", unit,
               below == 0 ? fmt::to_string(unit) : fmt::format("{} or {}", below, below + unit));
}

void settle_schedule(const CLI::App& app, ProgramArguments& a) {
  if (!given(app, "--lr-decay-iters")) a.lr_decay_iters = a.train_iters;
  if (a.min_lr > a.lr) config_error("--min-lr is {}, above --lr {}; use at most --lr", a.min_lr, a.lr);
  const std::int64_t limit = std::min(a.train_iters, a.lr_decay_iters);
  if (a.lr_warmup_iters >= limit) {
    config_error("--lr-warmup-iters is {}, but {} is {}; use less than {}", a.lr_warmup_iters,
                 limit == a.train_iters ? "--train-iters" : "--lr-decay-iters", limit, limit);
  }
}

void settle_output(const CLI::App& app, ProgramArguments& a) {
  if (a.metrics_path.empty()) a.metrics_path = a.save.value_or("") / "metrics.jsonl";
  if (!a.prompt.empty() && a.sample_bytes == 0) {
    config_error("--prompt is given, but --sample-bytes is 0, so no text is generated; give --sample-bytes N");
  }
  if (given(app, "--report-device") && !a.report) {
    config_error("--report-device is {}, but --report is not given, so no page is written; add --report FILE",
                 a.report_device);
  }
  for (const char* flag : {"--eval-iters", "--eval-interval"}) {
    if (a.held_out_fraction == 0 && given(app, flag)) {
      config_error(
          "{} is given, but --held-out-fraction is 0, so no data is kept for evaluation; use a fraction above 0", flag);
    }
  }
}

// Evaluation alone has no step to look at and nothing to save.
void settle_skip_train(ProgramArguments& a) {
  if (!a.skip_train) return;
  const std::pair<bool, std::string_view> of_steps[] = {{a.save.has_value(), "--save"},
                                                        {a.report.has_value(), "--report"},
                                                        {a.print_schedule, "--print-schedule"},
                                                        {a.profile.enabled, "--profile"}};
  for (const auto& [is_given, flag] : of_steps) {
    if (is_given) config_error("{} is given, but with --skip-train no step is taken; remove one of them", flag);
  }
  if (a.eval_iters == 0) {
    config_error("--eval-iters is 0, but with --skip-train evaluation is all there is; use at least 1");
  }
}

void settle_presets(ProgramArguments& a) {
  if (a.model_config) a.model_config = config::find_preset(a.model_config->string(), "models", "--model-config");
  if (a.fsdp2_config_path) {
    a.fsdp2_config_path = config::find_preset(a.fsdp2_config_path->string(), "fsdp2", "--fsdp2-config-path");
  }
}

void refuse_profile_flags(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    const bool of_profile = !option->get_lnames().empty() && option->get_lnames().front().starts_with("profile-");
    if (!of_profile || option->count() == 0) continue;
    config_error("--{} is given, but --profile is not, so nothing is collected; add --profile",
                 option->get_lnames().front());
  }
}

void settle_profile(const CLI::App& app, ProgramArguments& a) {
  observe::ProfileOptions& p = a.profile;
  if (!p.enabled) return refuse_profile_flags(app);
  if (p.step_end <= p.step_start) {
    const bool end_given = given(app, "--profile-step-end");
    config_error("--profile-step-end is {}{}, but collection begins at --profile-step-start {}; use at least {}",
                 p.step_end, end_given ? "" : " by default", p.step_start, p.step_start + 1);
  }
  for (const int rank : p.ranks) {
    if (rank < a.ranks) continue;
    config_error("--profile-ranks names rank {}, but {}; use {}", rank,
                 a.ranks == 1 ? "one rank runs" : fmt::format("{} ranks run", a.ranks),
                 a.ranks == 1 ? "0" : fmt::format("0 to {}", a.ranks - 1));
  }
  std::ranges::sort(p.ranks);
  p.ranks.erase(std::ranges::unique(p.ranks).begin(), p.ranks.end());
}

void settle_kernels(ProgramArguments& a) {
  if (a.kernels == train::KernelSet::kFast) a.fused = nn::KernelOptions::fast();
}

void settle(const CLI::App& app, Program program, const launch::LaunchContext& context, const ForeignFlags& foreign,
            ProgramArguments& a) {
  check_limits(a);
  a.megatron_recompute_flags = foreign.recompute;
  a.without_effect = foreign.without_effect;
  a.bf16 = foreign.bf16;
  check_weights(a);
  check_sharding(a);
  check_checkpoints(a, foreign);
  settle_ranks(app, plans(program), context, foreign, a);
  settle_batch(app, plans(program) ? std::numeric_limits<int>::max() : kMostBatch, a);
  if (plans(program)) check_planned_work(a);
  settle_schedule(app, a);
  settle_output(app, a);
  settle_profile(app, a);
  settle_skip_train(a);
  settle_kernels(a);
  settle_presets(a);
}

void check(const GenerateArguments& a) {
  if (a.model_dir.empty()) config_error("no model is given; use shardloom generate MODEL_DIR --prompt TEXT");
  if (a.prompt.empty()) config_error("no prompt is given; use --prompt TEXT");
  if (a.top_k > 0 && a.temperature == 0) {
    config_error(
        "--top-k is {}, but --temperature is 0, which always takes the likeliest token; give --temperature above 0",
        a.top_k);
  }
}

// --- What CLI11 could not place

// "shardloom train", or a program's own name.
std::string command_name(const CLI::App& app) {
  const CLI::App* parent = app.get_parent();
  return parent == nullptr ? app.get_name() : parent->get_name() + " " + app.get_name();
}

std::vector<std::string> flag_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;                                                // not for users
    if (!option->get_lnames().empty()) names.push_back("--" + option->get_lnames().front());  // not its other names
  }
  return names;
}

std::string unknown_flag(const CLI::App& app, const std::string& name) {
  const auto nearest = nearest_spelling(name, flag_names(app));
  return fmt::format(
      "unknown flag {}; {}", name,
      nearest ? fmt::format("did you mean {}?", *nearest) : fmt::format("see {} --help", command_name(app)));
}

// Unknown flags and those that are refused, all at once; words that belong to no flag only where that is all.
void refuse_extras(const CLI::App& app, const std::vector<std::string>& refused) {
  std::vector<std::string> lines;
  const std::vector<std::string> extras = app.remaining();
  for (const std::string& word : extras) {
    if (word.size() < 2 || !word.starts_with('-') || parse_number<double>(word)) continue;
    std::string line = unknown_flag(app, word.substr(0, word.find('=')));
    if (std::ranges::find(lines, line) == lines.end()) lines.push_back(std::move(line));
  }
  lines.insert(lines.end(), refused.begin(), refused.end());
  if (lines.size() == 1) config_error("{}", lines.front());
  if (!lines.empty()) config_error("{} flags are not taken:\n  {}", lines.size(), fmt::join(lines, "\n  "));
  if (!extras.empty()) config_error("'{}' belongs to no flag; see {} --help", extras.front(), command_name(app));
}

[[noreturn]] void refuse_command(const std::vector<std::string>& words) {
  const std::vector<std::string> commands = {"train", "plan", "generate"};
  if (words.empty())
    config_error(
        "no command is given; use shardloom train, shardloom plan or shardloom generate (--help lists their flags)");
  const auto nearest = nearest_spelling(words.front(), commands);
  config_error("'{}' is not a command; {}", words.front(),
               nearest ? fmt::format("did you mean {}?", *nearest) : "use train, plan or generate");
}

// CLI11's own refusals: a flag without its value, a flag with one it does not take.
[[noreturn]] void refuse_parse(const CLI::ParseError& error) {
  const std::string text = error.what();
  if (const auto colon = text.find(": "); text.ends_with(" missing") && colon != std::string::npos) {
    config_error("{} needs a value, but nothing follows; see --help", text.substr(0, colon));
  }
  if (const auto flag = text.find(" was given a disallowed flag override"); flag != std::string::npos) {
    config_error("--{} takes no value; give it alone", text.substr(0, flag));
  }
  config_error("{}; see --help", text);
}

constexpr const char* kProgramExample =
    "Example:\n"
    "  shardloom train --model-config quickstart --data-path corpus.txt --train-iters 20 --save out\n"
    "  shardloom generate out --prompt \"template <class T>\"\n"
    "Flags of a command: shardloom train --help, and so for the others\n"
    "Exit status: 0 done, 1 a run failed or lost an output, 2 the command line or a file is wrong, 3 a plan does not "
    "fit, "
    "130 or 143 stopped by SIGINT or SIGTERM\n";
constexpr const char* kTrainExample =
    "Example:\n  shardloom train --model-config quickstart --data-path corpus.txt --nproc-per-node 2 \\\n"
    "    --use-torch-fsdp2 --fsdp2-config-path quickstart --train-iters 200 --save out\n";
constexpr const char* kPlanExample =
    "Example:\n  shardloom plan --model-config llama3_8b --use-torch-fsdp2 \\\n"
    "    --fsdp2-config-path full_shard --world-size 64 --device h200 --seq-length 8192\n";
constexpr const char* kGenerateExample =
    "Example:\n  shardloom generate out --prompt \"Once upon a time\" --max-new-tokens 40\n";

// The flags of training on one command.
class TrainingFlags final : public train::ExtraArguments {
 public:
  TrainingFlags(CLI::App& app, Program program) : app_(app), program_(program), flags_(app) {
    values_.fused = nn::KernelOptions::pytorch();  // settled by --kernels, which is known only later
    add_model_and_data(flags_, program, values_);
    add_batch_and_schedule(flags_, values_);
    add_optimizer(flags_, values_);
    add_execution(flags_, values_);
    add_output(flags_, program, values_);
    if (!plans(program)) add_profile(flags_, values_.profile);
    add_foreign_flags(flags_, foreign_);
    flags_.group("Flags of this program");  // those added from outside
  }

  void group(const std::string& heading) override { flags_.group(heading); }
  void whole(const std::string& flag, std::int64_t& value, std::int64_t least, const std::string& about) override {
    make_room(flag);
    flags_.whole(flag, value, least, about);
    added_.emplace_back(flag, [&value] { return fmt::to_string(value); });
  }
  void real(const std::string& flag, double& value, const std::string& about) override {
    make_room(flag);
    flags_.real(flag, value, finite, "a number", about);
    added_.emplace_back(flag, [&value] { return fmt::to_string(value); });
  }
  void text(const std::string& flag, std::string& value, const std::string& about) override {
    make_room(flag);
    flags_.text(flag, "TEXT", value, about, value);
    added_.emplace_back(flag, [&value] { return value; });
  }
  void toggle(const std::string& flag, bool& value, const std::string& about) override {
    make_room(flag);
    flags_.toggle(flag, value, about);
    added_.emplace_back(flag, [&value] { return fmt::to_string(value); });
  }
  void example(const std::string& flags) override {
    app_.footer(fmt::format("Example:\n  {} {}\n", app_.get_name(), flags));
  }

  // Flags of the command beside those of training.
  Flags& flags() { return flags_; }
  void set_ranks(int ranks) { values_.ranks = ranks; }
  void set_command_line(std::vector<std::string> words) { values_.command_line = std::move(words); }

  // What the parse gave that is not taken here.
  const std::vector<std::string>& refused() const { return foreign_.refused; }

  // After the parse.
  ProgramArguments settled(const launch::LaunchContext& context) {
    if (!is_users(program_)) check_sources(values_, program_);
    settle(app_, program_, context, foreign_, values_);
    for (const auto& [flag, value] : added_) values_.added_flags.emplace_back(flag, value());
    return values_;
  }

 private:
  // A program's own flag has a meaning, even where launch scripts have one of that name.
  void make_room(const std::string& flag) {
    CLI::Option* foreign = app_.get_option_no_throw(flag);
    if (foreign != nullptr && foreign->get_group().empty()) app_.remove_option(foreign);
  }

  CLI::App& app_;
  const Program program_;
  Flags flags_;
  ProgramArguments values_;
  ForeignFlags foreign_;
  std::vector<std::pair<std::string, std::function<std::string()>>> added_;  // read after the parse
};

void add_plan(Flags& flags, PlanArguments& a, int& world_size) {
  flags.group("Plan");
  flags.whole("--world-size", world_size, 1, "Devices", "--nproc-per-node");
  flags.text("--device", "PROFILE", a.device, "Device profile: a file, or a name in configs/devices", a.device);
  flags.text("--json", "FILE", a.json, "Write the plan as JSON; - is standard output");
  flags.text("--trace", "FILE", a.trace, "Write the planned step for Perfetto (ui.perfetto.dev)");
  flags.toggle("--sweep", a.sweep, "Try sharding sizes, reshard, recompute, prefetch, micro-batches; rank what fits");
  flags.choice<PlanArguments::Fit>(
      "--fit", a.fit,
      {{"nothing", PlanArguments::Fit::kNothing},
       {"micro-batch", PlanArguments::Fit::kMicroBatch},
       {"world-size", PlanArguments::Fit::kWorldSize}},
      "Search the largest micro-batch, or the smallest world, that fits; a --global-batch-size is kept");
}

void refuse_what_is_searched(const CLI::App& app, const std::string& search, const std::string& what,
                             const std::string& flag) {
  if (!given(app, flag)) return;
  config_error("--fit {} searches {}, but {} is {}; remove one of them", search, what, flag,
               app.get_option(flag)->as<std::string>());
}

// What a search looks for is not given beside it; what is given, it keeps.
void settle_search(const CLI::App& app, PlanArguments& a) {
  using Fit = PlanArguments::Fit;
  if (a.sweep && a.fit != Fit::kNothing) {
    config_error("--sweep and --fit are both given, and each is a search of its own; remove one of them");
  }
  if (a.fit == Fit::kMicroBatch) refuse_what_is_searched(app, "micro-batch", "the micro-batch", "--micro-batch-size");
  if (a.fit == Fit::kWorldSize) {
    for (const char* flag : {"--world-size", "--nproc-per-node"}) {
      refuse_what_is_searched(app, "world-size", "the number of devices", flag);
    }
  }
  if (given(app, "--micro-batch-size")) a.micro_batch_size = a.train.micro_batch_size;
  if (given(app, "--global-batch-size")) a.global_batch_size = a.train.global_batch_size;
}

// 0: not given.
void settle_world(const CLI::App& app, int world_size, TrainingFlags& training) {
  if (world_size == 0) return;
  const int ranks = given(app, "--nproc-per-node") ? app.get_option("--nproc-per-node")->as<int>() : 1;
  if (world_size % ranks != 0) {
    config_error("--world-size is {}, which is no multiple of --nproc-per-node {}; use {}, or leave out one of them",
                 world_size, ranks, round_up(world_size, ranks));
  }
  training.set_ranks(world_size);
}

using Apps = std::vector<const CLI::App*>;

// "--data_path=d" and "--data-path=d" are of "--data-path".
std::string flag_name(std::string_view word) {
  std::string name(word.substr(0, word.find('=')));
  std::ranges::replace(name, '_', '-');
  return name;
}

bool takes_several(const Apps& apps, const std::string& name) {
  return std::ranges::any_of(apps, [&](const CLI::App* app) {
    const CLI::Option* option = app->get_option_no_throw(name);
    return option != nullptr && option->get_expected_max() > 1;
  });
}

// Of a flag with several values that is given again, the last: CLI11 would take the values of both.
void keep_last_lists(std::vector<std::string>& words, const Apps& apps) {
  for (std::size_t i = 0; i < words.size();) {
    const std::string name = words[i].starts_with("--") ? flag_name(words[i]) : std::string{};
    const auto from = words.begin() + static_cast<std::ptrdiff_t>(i);
    const auto again = [&](const std::string& word) { return word.starts_with("--") && flag_name(word) == name; };
    if (name.empty() || !takes_several(apps, name) || std::none_of(from + 1, words.end(), again)) {
      ++i;
      continue;
    }
    words.erase(from, std::find_if(from + 1, words.end(), [](const std::string& w) { return w.starts_with("--"); }));
  }
}

// The words of a command line for CLI11 (last one first, without the program), with dashes for underscores in the names
// of known flags: torchrun takes both.
std::vector<std::string> reversed_words(int argc, const char* const* argv, const Apps& apps) {
  std::vector<std::string> words(argv + 1, argv + argc);
  for (std::string& word : words) {
    const std::string name = flag_name(word);
    const auto knows = [&](const CLI::App* app) { return app->get_option_no_throw(name) != nullptr; };
    if (word.starts_with("--") && std::ranges::any_of(apps, knows)) word.replace(0, name.size(), name);
  }
  keep_last_lists(words, apps);
  std::ranges::reverse(words);
  return words;
}

// The help's text, where the words ask for it.
std::optional<EarlyExit> parse_words(CLI::App& app, std::vector<std::string> words) {
  try {
    app.parse(std::move(words));
  } catch (const CLI::Success& help) {
    std::ostringstream text;
    const int code = app.exit(help, text, text);
    return EarlyExit{code, text.str()};
  } catch (const CLI::ParseError& error) {
    refuse_parse(error);
  }
  return std::nullopt;
}

constexpr std::size_t kHelpColumn = 46;  // where a flag's description begins

// The program's parser; subcommands write into the two structs.
class Parser {
 public:
  Parser() {
    app_.get_formatter()->column_width(kHelpColumn);
    app_.footer(kProgramExample);
    train_.footer(kTrainExample);
    generate_.footer(kGenerateExample);
    plan_.footer(kPlanExample);
    for (CLI::App* app : {&app_, &train_, &plan_, &generate_}) app->allow_extras();
    app_.set_version_flag("--version", fmt::format("shardloom {}", LOOM_VERSION), "Print the version and end");
    add_plan(planning_.flags(), plan_values_, world_size_);
    Flags generate(generate_);
    add_generate(generate, generate_values_);
  }

  ParsedCommand run(int argc, const char* const* argv, const launch::LaunchContext& context) {
    if (auto help = parse_words(app_, reversed_words(argc, argv, {&train_, &plan_, &generate_}))) return *help;
    if (!app_.remaining().empty() || app_.get_subcommands().empty()) refuse_command(app_.remaining());
    const CLI::App& chosen = *app_.get_subcommands().front();
    refuse_extras(chosen, &chosen == &plan_ ? planning_.refused() : training_.refused());
    const std::vector<std::string> words(argv + 1, argv + argc);
    training_.set_command_line(words);
    planning_.set_command_line(words);
    if (&chosen == &train_) return training_.settled(context);
    if (&chosen == &plan_) return settled_plan();
    check(generate_values_);
    return generate_values_;
  }

 private:
  PlanArguments settled_plan() {
    settle_world(plan_, world_size_, planning_);
    plan_values_.train = planning_.settled({.cores = 1});
    settle_search(plan_, plan_values_);
    return plan_values_;
  }

  CLI::App app_{"Shardloom: train sharded models and see what the sharding does.", "shardloom"};
  CLI::App& train_ = *app_.add_subcommand("train", "Train a model on one or more ranks.");
  CLI::App& plan_ =
      *app_.add_subcommand("plan", "Predict memory and time of a training step on any number of devices.");
  CLI::App& generate_ = *app_.add_subcommand("generate", "Continue a text with a trained model.");
  TrainingFlags training_{train_, Program::kShardloomTrain};
  TrainingFlags planning_{plan_, Program::kShardloomPlan};
  PlanArguments plan_values_;
  int world_size_ = 0;  // 0: not given
  GenerateArguments generate_values_;
};

}  // namespace

ParsedCommand parse_arguments(int argc, const char* const* argv, const launch::LaunchContext& context) {
  return Parser().run(argc, argv, context);
}

namespace {

// The parser of a pretrain program's command line: training flags, or behind the word `plan` those of a plan too.
class ProgramParser {
 public:
  ProgramParser(const std::string& name, bool plan)
      : app_(plan ? "Predicts memory and time of a training step on any number of devices."
                  : "Trains a model on one or more ranks; with `plan` as the first word, predicts a step instead.",
             plan ? name + " plan" : name),
        training_(app_, plan ? Program::kUsersPlan : Program::kUsersTrain) {
    app_.get_formatter()->column_width(kHelpColumn);
    app_.allow_extras();
    app_.set_version_flag("--version", fmt::format("{} on Shardloom {}", name, LOOM_VERSION),
                          "Print the version of Shardloom and end");
    training_.example("--nproc-per-node 2 --use-torch-fsdp2 --fsdp2-config-path fsdp2_config.yaml --train-iters 20");
    if (plan) add_plan(training_.flags(), plan_values_, world_size_);
  }

  train::ExtraArguments& extra() { return training_; }

  std::optional<EarlyExit> parse(int argc, const char* const* argv) {
    if (auto help = parse_words(app_, reversed_words(argc, argv, {&app_}))) return help;
    refuse_extras(app_, training_.refused());
    training_.set_command_line({argv + 1, argv + argc});
    return std::nullopt;
  }

  ProgramArguments settled(const launch::LaunchContext& context) { return training_.settled(context); }
  PlanArguments settled_plan() {
    settle_world(app_, world_size_, training_);
    plan_values_.train = training_.settled({.cores = 1});
    settle_search(app_, plan_values_);
    return plan_values_;
  }

 private:
  CLI::App app_;
  TrainingFlags training_;
  PlanArguments plan_values_;
  int world_size_ = 0;  // 0: not given
};

}  // namespace

ParsedProgram parse_program_arguments(int argc, const char* const* argv,
                                      const std::function<void(train::ExtraArguments&)>& extra,
                                      const launch::LaunchContext& context) {
  const std::string_view first = argc > 1 ? argv[1] : "";
  const bool plan = first == "plan";
  const std::filesystem::path program = argv[0];
  ProgramParser parser(program.filename().string(), plan);
  if (extra) extra(parser.extra());
  if (auto help = parser.parse(plan ? argc - 1 : argc, plan ? argv + 1 : argv)) return *help;
  if (plan) return parser.settled_plan();
  return parser.settled(context);
}

}  // namespace loom::cli
