#include "engine/cli/words/argument_rules.h"

#include "engine/cli/words/host_checks.h"
#include "engine/cli/words/host_optimizer_checks.h"
#include "engine/cli/words/memory_checks.h"
#include "engine/cli/words/recompute_checks.h"
#include "engine/cli/words/schedule_rules.h"
#include "engine/cli/words/swap_checks.h"
#include "engine/config/share_folder.h"
#include "engine/core/rounding.h"
#include "engine/job/foreign.h"

namespace loom::cli {
namespace {

void check_weights(const models::ModelOptions& model) {
  if (model.downcast_to_bf16 && !model.init_from_hf_path) {
    config_error(
        "--downcast-to-bf16 rounds loaded weights, but none are loaded; add --init-from-hf-path DIR or remove it");
  }
}

// What belongs to adapters, where none are asked for or a folder has it.
void check_lora(const models::ModelOptions& model, Refusals& refusals) {
  const models::LoraFlags& lora = model.lora;
  const std::pair<bool, std::string_view> parts[] = {{lora.r.has_value(), "--lora-r"},
                                                     {lora.alpha.has_value(), "--lora-alpha"},
                                                     {lora.dropout.has_value(), "--lora-dropout"},
                                                     {lora.use_rslora, "--use-rslora"},
                                                     {!lora.modules_to_save.empty(), "--lora-modules-to-save"}};
  for (const auto& [is_given, flag] : parts) {
    if (!is_given || lora.on()) continue;
    refusals.add(fmt::format(
        "{} is given, but no adapters are asked for; add --lora-target-modules NAME ... or --lora-load DIR, or remove "
        "it",
        flag));
  }
  if (!lora.load) return;
  if (lora.target_modules.empty() && lora.modules_to_save.empty()) return;
  config_error("--lora-load is {}, whose configuration has the modules, and {} is given too; remove one of them",
               shown_text(lora.load->string()),
               lora.target_modules.empty() ? "--lora-modules-to-save" : "--lora-target-modules");
}

// Flags of an optimizer beside another one.
void check_optimizer(const Command& app, const job::Job& a, Refusals& refusals) {
  const auto refuse_without = [&](std::string_view prefix, bool is_chosen, std::string_view word) {
    for (const SeenFlag& flag : app.flags()) {
      if (is_chosen || !flag.given || !flag.name.starts_with(prefix)) continue;
      refusals.add(
          fmt::format("{} is of --optimizer {}, which is not given; add it, or remove the flag", flag.name, word));
    }
  };
  refuse_without("--muon-", a.optimizer.kind == train::OptimizerKind::kMuon, "muon");
  refuse_without("--sgd-", a.optimizer.kind == train::OptimizerKind::kSgd, "sgd");
  if (a.optimizer.kind == train::OptimizerKind::kSgd && a.optimizer.sgd_nesterov && a.optimizer.sgd_momentum == 0) {
    config_error("--sgd-nesterov is given, and --sgd-momentum is 0; give a momentum above 0, or remove it");
  }
  if (a.optimizer.kind == train::OptimizerKind::kSgd && a.optimizer.sgd_dampening != 0 &&
      (a.optimizer.sgd_nesterov || a.optimizer.sgd_momentum == 0)) {
    config_error("--sgd-dampening is {}, and {}; remove one of the two", a.optimizer.sgd_dampening,
                 a.optimizer.sgd_nesterov ? "Nesterov's form (--sgd-nesterov) has none"
                                          : "--sgd-momentum is 0, so there is none");
  }
  check_limit("--muon-num-ns-steps", a.optimizer.muon.steps, 100);
}

// Flags of launch scripts that have nothing to act on here.
void note_without_effect(job::WrittenFlags& written, const std::vector<std::pair<bool, std::string>>& flags) {
  for (const auto& [is_given, flag] : flags) {
    if (is_given) written.without_effect.emplace_back(flag);
  }
}

bool saves_checkpoints(const train::CheckpointOptions& checkpoint, const train::ScheduleOptions& schedule) {
  return schedule.save_interval > 0 || checkpoint.async_save || checkpoint.keep_last || checkpoint.no_save_optim ||
         checkpoint.no_save_rng || checkpoint.on_save_error != train::OnSaveError::kStop;
}

void settle_checkpoints(job::Job& a) {
  if (a.checkpoint.ckpt_format_word == "torch_dist" && (a.checkpoint.save || a.checkpoint.load)) {
    config_error(
        "--ckpt-format is torch_dist, a layout of Megatron's own that is neither written nor read here; use torch_dcp");
  }
  if (a.checkpoint.ckpt_format_word == "hf" && (saves_checkpoints(a.checkpoint, a.schedule) || a.checkpoint.load)) {
    config_error(
        "--ckpt-format is hf, a folder of the trained model from which no run can go on, but a flag of checkpoints is "
        "given (--save-interval, --load, --async-save, --keep-last, --no-save-optim, --no-save-rng or "
        "--on-save-error); "
        "remove it, or use torch_dcp");
  }
  if (a.checkpoint.ckpt_format_word == "torch_dist") a.checkpoint.ckpt_format = train::CheckpointFormat::kTorchDist;
  const bool checkpoints = a.checkpoint.ckpt_format_word.value_or("hf") == "torch_dcp" ||
                           saves_checkpoints(a.checkpoint, a.schedule) || a.checkpoint.load;
  if (checkpoints) a.checkpoint.ckpt_format = train::CheckpointFormat::kTorchDcp;
  if (a.checkpoint.ckpt_step && !a.checkpoint.load) {
    config_error("--ckpt-step is {}, but --load is not given, so nothing is loaded; add --load DIR",
                 *a.checkpoint.ckpt_step);
  }
  if (!a.checkpoint.load) {
    note_without_effect(a.written, {{a.checkpoint.no_load_optim, "--no-load-optim"},
                                    {a.checkpoint.no_load_rng, "--no-load-rng"},
                                    {a.checkpoint.finetune, "--finetune"},
                                    {a.checkpoint.exit_on_missing_checkpoint, "--exit-on-missing-checkpoint"}});
  }
  if (!a.checkpoint.save) {
    note_without_effect(
        a.written,
        {{a.schedule.save_interval > 0, fmt::format("--save-interval {}", a.schedule.save_interval)},
         {a.checkpoint.async_save, "--async-save"},
         {a.checkpoint.keep_last.has_value(), fmt::format("--keep-last {}", a.checkpoint.keep_last.value_or(0))},
         {a.checkpoint.no_save_optim, "--no-save-optim"},
         {a.checkpoint.no_save_rng, "--no-save-rng"}});
  }
}

void check_sharding(const job::Job& a, Refusals& refusals) {
  if (a.parallel.fsdp2_config_path && !a.parallel.use_torch_fsdp2) {
    refusals.add(fmt::format("--fsdp2-config-path is {}, but --use-torch-fsdp2 is not given; add it",
                             a.parallel.fsdp2_config_path->string()));
  }
  if (a.parallel.use_torch_fsdp2 && !a.parallel.fsdp2_config_path) {
    refusals.add(fmt::format("--use-torch-fsdp2 is given without --fsdp2-config-path; add --fsdp2-config-path FILE"));
  }
  if (a.optimizer.fp16 && a.parallel.bf16)
    return refusals.add(fmt::format("--fp16 and --bf16 are both given; keep one"));
  if (a.parallel.bf16 && !a.parallel.use_torch_fsdp2) {
    refusals.add(fmt::format(
        "--bf16 is given without --use-torch-fsdp2, and parameters are fp32 here; add --use-torch-fsdp2 and a file "
        "with "
        "param_dtype: bf16, or remove it"));
  }
  if (a.optimizer.fp16 && !a.parallel.use_torch_fsdp2) {
    refusals.add(fmt::format(
        "--fp16 is given without --use-torch-fsdp2, and parameters are fp32 here; add --use-torch-fsdp2 and a file "
        "with param_dtype: fp16, or remove it"));
  }
  if (a.report.print_schedule && !a.parallel.use_torch_fsdp2) {
    refusals.add(
        fmt::format("--print-schedule is given, but --use-torch-fsdp2 is not, so nothing is gathered; add it"));
  }
}

// What the engine counts with, and what a machine can run: above these, arithmetic or the machine would end.
constexpr std::int64_t kMostRanks = 10'000'000;
constexpr std::int64_t kMostThreadRanks = 1024;
constexpr std::int64_t kMostThreads = 1024;
constexpr std::int64_t kMostBatch = 10'000'000;
constexpr std::int64_t kMostPlannedMicroBatches = 4096;

void check_limits(const job::Job& a) {
  check_limit("--train-iters", a.schedule.train_iters, kMostSteps);
  check_limit("--lr-decay-iters", a.schedule.lr_decay_iters, kMostSteps);
  check_limit("--eval-iters", a.schedule.eval_iters, kMostSteps);
  check_limit("--micro-batch-size", a.schedule.micro_batch_size, kMostBatch);
  check_limit("--seq-length", a.data.seq_length, 1 << 30);
  check_limit("--compute-threads", a.launch.compute_threads, kMostThreads, ", best the cores of this machine");
  check_limit("--distributed-timeout-minutes", a.launch.distributed_timeout_minutes, 60 * 24 * 365, ", a year");
}

// After the ranks and the batch are known.
void check_planned_work(const job::Job& a) {
  check_limit("--world-size", a.launch.ranks, kMostRanks);
  const std::int64_t unit = std::int64_t{a.schedule.micro_batch_size} * a.launch.ranks;
  const std::int64_t micro_batches = a.schedule.global_batch_size / unit;
  if (micro_batches <= kMostPlannedMicroBatches) return;
  config_error(
      "--global-batch-size is {}, which makes {} micro-batches a step, above the {} that a plan goes through; use at "
      "most {}, or a larger --micro-batch-size or --world-size",
      a.schedule.global_batch_size, micro_batches, kMostPlannedMicroBatches, kMostPlannedMicroBatches * unit);
}

void settle_ranks(const Command& app, bool planned, const launch::Start& start, job::Job& a) {
  int local_ranks = a.launch.ranks;
  if (!planned && start.mpi_ranks == 0) {
    check_limit("--nproc-per-node", a.launch.ranks, kMostThreadRanks,
                ", as each is a thread; more ranks are processes (mpirun)");
  }
  if (start.mpi_ranks > 0) local_ranks = take_mpi_ranks(app, start, a.launch.ranks);
  const auto worker_num = job::foreign_value(a.written, "--worker-num");
  if (worker_num && *worker_num != fmt::to_string(a.launch.ranks)) {
    config_error("--worker-num is {}, but {} rank{} run; write --local-worker-num {} beside it, or remove it",
                 *worker_num, a.launch.ranks, a.launch.ranks == 1 ? "" : "s", *worker_num);
  }
  if (!given(app, "--compute-threads")) a.launch.compute_threads = std::max(1, start.cores / local_ranks);
}

// `most`: sequences of a step.
void settle_batch(const Command& app, std::int64_t most, job::Job& a) {
  const std::int64_t unit = std::int64_t{a.schedule.micro_batch_size} * a.launch.ranks;
  if (unit > most) {
    config_error("--micro-batch-size {} x {} ranks is {} sequences a step, above {}; use less",
                 a.schedule.micro_batch_size, a.launch.ranks, unit, most);
  }
  check_limit("--global-batch-size", a.schedule.global_batch_size, most);
  if (!given(app, "--global-batch-size")) a.schedule.global_batch_size = static_cast<int>(unit);
  if (a.schedule.global_batch_size % unit == 0) return;
  const std::int64_t below = a.schedule.global_batch_size / unit * unit;
  config_error("--global-batch-size is {}, but --micro-batch-size {} x {} {} needs a multiple of {}; use {}",
               a.schedule.global_batch_size, a.schedule.micro_batch_size, a.launch.ranks,
               a.launch.ranks == 1 ? "rank" : "ranks", unit,
               below == 0 ? fmt::to_string(unit) : fmt::format("{} or {}", below, below + unit));
}

constexpr const char* kFlagsOfTokens[] = {
    "--split",        "--data-cache-path", "--tokenizer-name-or-path", "--reset-position-ids", "--reset-attention-mask",
    "--eod-mask-loss"};
constexpr const char* kFlagsOfInstructions[] = {
    "--neat-pack",    "--no-shuffle",         "--padded-samples",       "--cut-max-seqlen",
    "--no-cut-token", "--pad-to-multiple-of", "--no-pad-to-seq-lengths"};
constexpr const char* kFlagsOfBytes[] = {"--held-out-fraction", "--bytes-as-tokens"};

void check_parts(const Command& app, const data::DataOptions& data_options, const train::ScheduleOptions& schedule) {
  const auto& [train, valid, test] = data_options.part_data_path;
  if (train.empty() && valid.empty() && test.empty()) return;
  if (!data_options.data_path.empty()) {
    config_error(
        "--data-path and {} are both given; keep the first for one data set with --split, or the others for one each",
        !train.empty()   ? "--train-data-path"
        : !valid.empty() ? "--valid-data-path"
                         : "--test-data-path");
  }
  if (train.empty() && !schedule.skip_train)
    config_error("--train-data-path is missing beside those of the other parts; add it");
  if (given(app, "--split")) {
    config_error("--split is for --data-path, and --train-data-path names the parts themselves; remove one of them");
  }
}

using data::Stage;

constexpr std::pair<const char*, Stage> kFlagsOfStages[] = {
    {"--dpo-loss-type", Stage::kDpo},          {"--dpo-beta", Stage::kDpo},
    {"--dpo-label-smoothing", Stage::kDpo},    {"--ref-model", Stage::kDpo},
    {"--ref-logps-cache", Stage::kDpo},        {"--placeholder-token", Stage::kPrm},
    {"--reward-tokens", Stage::kPrm},          {"--simpo-loss-type", Stage::kSimpo},
    {"--simpo-beta", Stage::kSimpo},           {"--gamma-beta-ratio", Stage::kSimpo},
    {"--simpo-label-smoothing", Stage::kSimpo}};

void settle_stage(const Command& app, job::Job& a, Refusals& refusals) {
  for (const auto& [flag, of] : kFlagsOfStages) {
    if (!given(app, flag) || a.data.stage == of) continue;
    refusals.add(fmt::format("{} is of --stage {}; add that, or remove it", flag, data::word_of(of)));
  }
  const bool pairs = a.data.stage && data::has_pairs(*a.data.stage);
  const bool preferences = pairs && a.data.stage != Stage::kOrm;
  if (given(app, "--is-pairwise-dataset") && !pairs) {
    config_error("--is-pairwise-dataset is of --stage dpo, simpo and orm; add one, or remove it");
  }
  if (given(app, "--pref-ftx") && !preferences) {
    config_error("--pref-ftx is of --stage dpo and simpo; add one, or remove it");
  }
  if (pairs && a.data.neat_pack) config_error("--neat-pack is of --stage sft and prm: pairs are not packed; remove it");
  if (a.data.stage == Stage::kOrm && a.sample.sample_bytes > 0) {
    config_error("--sample-bytes is {}, and a model of --stage orm gives scores, not text; remove it",
                 a.sample.sample_bytes);
  }
  a.data.is_pairwise_dataset = pairs;
  a.data.numbered_samples = a.objective.ref_logps_cache.has_value();
  a.data.is_instruction_dataset = a.data.is_instruction_dataset || a.data.stage.has_value();
  a.objective.preference = a.data.stage == Stage::kSimpo ? a.objective.simpo : a.objective.dpo;
  a.objective.preference.pref_ftx = a.objective.dpo.pref_ftx;
}

// --variable-seq-lengths is in scripts for pretraining too, where it changes nothing.
void check_instructions(const Command& app, const data::DataOptions& a, Refusals& refusals) {
  if (a.eod_mask_loss && a.is_instruction_dataset) {
    config_error("--eod-mask-loss is for pretraining: with {} the labels of the data say where the loss is; remove it",
                 a.stage ? fmt::format("--stage {}", data::word_of(*a.stage)) : "--is-instruction-dataset");
  }
  for (const char* flag : kFlagsOfInstructions) {
    if (given(app, flag) && !a.is_instruction_dataset) {
      refusals.add(fmt::format("{} is for samples for fine-tuning; add --stage sft, or remove it", flag));
    }
  }
  if (a.no_cut_token && a.cut_max_seqlen) config_error("--no-cut-token and --cut-max-seqlen are both given; keep one");
}

// Flags of one kind of data beside data of the other. A program of a user's may read its data as it likes.
void check_data(const Command& app, Program program, const data::DataOptions& data_options,
                const train::ScheduleOptions& schedule, Refusals& refusals) {
  refusals.of([&] { check_parts(app, data_options, schedule); });
  refusals.of([&] { check_instructions(app, data_options, refusals); });
  if (is_users(program)) return;
  const bool bytes = data::data_kind(data_options) == data::DataKind::kBytes;
  if (bytes && data_options.data_path.empty()) return;
  if (!bytes) {
    for (const char* flag : kFlagsOfBytes) {
      if (given(app, flag)) {
        refusals.add(fmt::format("{} is for text that is read as bytes, and the data is .bin/.idx pairs; remove it{}",
                                 flag, std::string_view(flag) == "--held-out-fraction" ? ", and write --split" : ""));
      }
    }
    return;
  }
  for (const char* flag : kFlagsOfTokens) {
    if (given(app, flag)) {
      refusals.add(fmt::format(
          "{} is for .bin/.idx pairs, and --data-path {} is read as bytes: there is no {}.idx; make pairs with "
          "shardloom "
          "preprocess, or remove it",
          flag, shown_text(data_options.data_path.front().string()),
          shown_text(data_options.data_path.front().string())));
    }
  }
}

void settle_output(const Command& app, job::Job& a, Refusals& refusals) {
  if (a.log.metrics_path.empty()) a.log.metrics_path = a.checkpoint.save.value_or("") / "metrics.jsonl";
  if (!a.sample.prompt.empty() && a.sample.sample_bytes == 0) {
    config_error("--prompt is given, but --sample-bytes is 0, so no text is generated; give --sample-bytes N");
  }
  const bool is_planned = a.swap.smart_swap || a.memory.adaptive_recompute || a.memory.device_memory_mib > 0;
  if (given(app, "--report-device") && !a.report.path && !is_planned) {
    config_error("--report-device is {}, but --report is not given, so no page is written; add --report FILE",
                 a.report.device);
  }
  for (const char* flag : {"--eval-iters", "--eval-interval"}) {
    const bool has_held_out = a.data.held_out_fraction > 0 || data::data_kind(a.data) == data::DataKind::kTokens;
    if (!has_held_out && a.schedule.eval_iters > 0 && given(app, flag)) {
      refusals.add(fmt::format(
          "{} is given, but --held-out-fraction is 0, so no data is kept for evaluation; use a fraction above 0",
          flag));
    }
  }
}

// Evaluation alone has no step to look at and nothing to save.
void settle_skip_train(job::Job& a, Refusals& refusals) {
  if (!a.schedule.skip_train) return;
  const std::pair<bool, std::string_view> of_steps[] = {
      {a.checkpoint.save.has_value(), "--save"},
      {a.report.path.has_value(), "--report"},
      {a.report.print_schedule, "--print-schedule"},
      {a.profile.enabled, "--profile"},
      {!a.schedule.iterations_to_skip.empty(), "--iterations-to-skip"},
      {a.swap.smart_swap, "--smart-swap"},
      {a.memory.adaptive_recompute, "--adaptive-recompute-device-size"}};
  for (const auto& [is_given, flag] : of_steps) {
    if (!is_given) continue;
    refusals.add(fmt::format("{} is given, but with --skip-train no step is taken; remove one of them", flag));
  }
  a.checkpoint.no_load_optim = true;  // and with it the schedule
  if (a.schedule.eval_iters == 0) {
    config_error("--eval-iters is 0, but with --skip-train evaluation is all there is; use at least 1");
  }
}

void settle_presets(models::ModelOptions& model_options, train::ParallelOptions& parallel) {
  if (model_options.model_config)
    model_options.model_config = config::find_preset(model_options.model_config->string(), "models", "--model-config");
  if (parallel.fsdp2_config_path) {
    parallel.fsdp2_config_path =
        config::find_preset(parallel.fsdp2_config_path->string(), "fsdp2", "--fsdp2-config-path");
  }
}

void refuse_profile_flags(const Command& app, Refusals& refusals) {
  for (const SeenFlag& flag : app.flags()) {
    if (!flag.given || !flag.name.starts_with("--profile-")) continue;
    refusals.add(fmt::format("{} is given, but --profile is not, so nothing is collected; add --profile", flag.name));
  }
}

void settle_profile(const Command& app, launch::LaunchOptions& launch, observe::ProfileOptions& profile_options,
                    Refusals& refusals) {
  observe::ProfileOptions& p = profile_options;
  if (!p.enabled) return refuse_profile_flags(app, refusals);
  if (p.step_end <= p.step_start) {
    const bool end_given = given(app, "--profile-step-end");
    config_error("--profile-step-end is {}{}, but collection begins at --profile-step-start {}; use at least {}",
                 p.step_end, end_given ? "" : " by default", p.step_start, p.step_start + 1);
  }
  for (const int rank : p.ranks) {
    if (rank < launch.ranks) continue;
    config_error("--profile-ranks names rank {}, but {}; use {}", rank,
                 launch.ranks == 1 ? "one rank runs" : fmt::format("{} ranks run", launch.ranks),
                 launch.ranks == 1 ? "0" : fmt::format("0 to {}", launch.ranks - 1));
  }
  std::ranges::sort(p.ranks);
  p.ranks.erase(std::ranges::unique(p.ranks).begin(), p.ranks.end());
}

// Throughput is said in Megatron's line and in TensorBoard; elsewhere the flag of a launch script changes nothing.
void settle_logging(const Command& app, log::LogOptions& log_options, job::WrittenFlags& written_options,
                    Refusals& refusals) {
  const bool to_tensorboard = log_options.tensorboard_dir && log_options.log_timers_to_tensorboard;
  if (log_options.log_throughput && log_options.log_format == log::LogFormat::kShort && !to_tensorboard) {
    log_options.log_throughput = false;
    written_options.without_effect.emplace_back("--log-throughput");
  }
  if (log_options.log_params_norm && log_options.log_format == log::LogFormat::kShort && !log_options.tensorboard_dir) {
    log_options.log_params_norm = false;
    written_options.without_effect.emplace_back("--log-params-norm");
  }
  if (log_options.tensorboard_dir) return;
  for (const char* flag : {"--tensorboard-log-interval", "--tensorboard-queue-size", "--log-timers-to-tensorboard",
                           "--log-memory-to-tensorboard", "--log-loss-scale-to-tensorboard",
                           "--log-world-size-to-tensorboard", "--log-validation-ppl-to-tensorboard"}) {
    if (!given(app, flag)) continue;
    refusals.add(fmt::format(
        "{} is given, but --tensorboard-dir is not, so no scalar is written; add --tensorboard-dir DIR", flag));
  }
}

// The largest power of two that is at most total / batch, and at least 1.
std::int64_t chunk_of(std::int64_t total, std::int64_t batch) {
  std::int64_t chunk = 1;
  while (chunk <= total / batch / 2) chunk *= 2;
  return chunk;
}

void settle_loss_chunk(job::Job& a) {
  if (a.objective.total_chunk_size == 0) return;
  if (a.objective.loss_chunk_size > 0) {
    config_error(
        "--loss-chunk-size and --total-chunk-size are both given, and both say how many tokens a chunk of the loss "
        "has; "
        "remove one of them");
  }
  a.objective.loss_chunk_size = chunk_of(a.objective.total_chunk_size, a.schedule.micro_batch_size);
}

void settle_kernels(job::Job& a) {
  settle_loss_chunk(a);
  if (a.kernels.set == train::KernelSet::kFast) a.kernels.fused = nn::KernelOptions::fast();
  a.kernels.fused.loss_chunk_size = a.objective.loss_chunk_size;
  if (a.objective.loss_chunk_size > 0 && a.data.stage.value_or(Stage::kSft) != Stage::kSft) {
    config_error("--loss-chunk-size is {}, which is for the loss of next tokens, and --stage is {}; remove it",
                 a.objective.loss_chunk_size, data::word_of(*a.data.stage));
  }
}

void refuse_what_is_searched(const Command& app, const std::string& search, const std::string& what,
                             const std::string& flag) {
  if (!given(app, flag)) return;
  config_error("--fit {} searches {}, but {} is {}; remove one of them", search, what, flag, app.text_of(flag));
}

}  // namespace

int take_mpi_ranks(const Command& app, const launch::Start& start, int& ranks) {
  if (given(app, "--nproc-per-node")) {
    config_error("--nproc-per-node is {}, but the MPI launcher started {} ranks, one a process; leave it out", ranks,
                 start.mpi_ranks);
  }
  ranks = start.mpi_ranks;
  return start.local_ranks(ranks);
}

void check_sources(const job::Job& a, Program program) {
  if (a.model.model_config && a.model.init_from_hf_path) {
    config_error(
        "--model-config and --init-from-hf-path are both given; keep one: fresh weights or those of the folder");
  }
  if (!a.model.model_config && !a.model.init_from_hf_path) {
    config_error("no model is given; use --model-config FILE (fresh weights) or --init-from-hf-path DIR");
  }
  const auto& [train, valid, test] = a.data.part_data_path;
  const bool has_data =
      !a.data.data_path.empty() || !train.empty() || (a.schedule.skip_train && !(valid.empty() && test.empty()));
  if (!has_data && program == Program::kShardloomTrain) config_error("no data is given; use --data-path PATH");
}

// Ranks, batch and schedule: each needs the ones before it, and numbers that are what the command line says.
void settle_steps(const Command& app, Program program, const launch::Start& start, job::Job& a) {
  settle_ranks(app, plans(program), start, a);
  settle_batch(app, plans(program) ? std::numeric_limits<int>::max() : kMostBatch, a);
  if (plans(program)) check_planned_work(a);
  settle_schedule(app, a.schedule, a.written);
  settle_weight_decay(app, a.schedule, a.written);
  settle_loss_scale(app, a.optimizer, a.written);
}

void settle(const Command& app, Program program, const launch::Start& start, job::Job& a, Refusals& refusals) {
  refusals.of([&] { check_limits(a); });
  refusals.of([&] { settle_swapped_recompute(a.parallel, a.swap); });
  refusals.of([&] { settle_recompute(app, a.parallel); });
  job::settle_foreign(a.written);
  refusals.of([&] { check_weights(a.model); });
  refusals.of([&] { settle_stage(app, a, refusals); });
  a.data.variable_seq_lengths =
      a.data.is_instruction_dataset && (a.data.variable_seq_lengths || a.data.no_pad_to_seq_lengths);
  refusals.of([&] { check_lora(a.model, refusals); });
  refusals.of([&] { check_optimizer(app, a, refusals); });
  refusals.of([&] { check_memory(a); });
  refusals.of([&] { check_host_optimizer(app, a); });
  refusals.of([&] { check_data(app, program, a.data, a.schedule, refusals); });
  check_sharding(a, refusals);
  refusals.of([&] { settle_checkpoints(a); });
  if (refusals.parsed_well()) refusals.of([&] { settle_steps(app, program, start, a); });
  refusals.of([&] { settle_output(app, a, refusals); });
  settle_logging(app, a.log, a.written, refusals);
  if (refusals.parsed_well()) refusals.of([&] { settle_profile(app, a.launch, a.profile, refusals); });
  refusals.of([&] { settle_skip_train(a, refusals); });
  if (refusals.parsed_well()) refusals.of([&] { settle_iterations_to_skip(plans(program), a); });
  refusals.of([&] { settle_kernels(a); });
  refusals.of([&] { settle_swap(app, plans(program), a); });
  refusals.raise();
  settle_host(plans(program), start, a.launch);
  settle_presets(a.model, a.parallel);
}

void check(const CompareArguments& a) {
  if (a.a.empty() || a.b.empty()) {
    config_error("{} given; use shardloom compare A B", a.a.empty() ? "no runs are" : "only one run is");
  }
}

void settle_search(const Command& app, PlanArguments& a) {
  using Fit = PlanArguments::Fit;
  check_swap_search(a);
  check_memory_search(a);
  if (a.sweep && a.fit != Fit::kNothing) {
    config_error("--sweep and --fit are both given, and each is a search of its own; remove one of them");
  }
  if (a.fit == Fit::kMicroBatch) refuse_what_is_searched(app, "micro-batch", "the micro-batch", "--micro-batch-size");
  if (a.fit == Fit::kWorldSize) {
    for (const char* flag : {"--world-size", "--nproc-per-node"}) {
      refuse_what_is_searched(app, "world-size", "the number of devices", flag);
    }
  }
  if (given(app, "--micro-batch-size")) a.micro_batch_size = a.train.schedule.micro_batch_size;
  if (given(app, "--global-batch-size")) a.global_batch_size = a.train.schedule.global_batch_size;
}

void check_world(const Command& app, int world_size) {
  const int ranks = given(app, "--nproc-per-node") ? std::stoi(app.text_of("--nproc-per-node")) : 1;
  if (world_size % ranks == 0) return;
  config_error("--world-size is {}, which is no multiple of --nproc-per-node {}; use {}, or leave out one of them",
               world_size, ranks, round_up(world_size, ranks));
}

}  // namespace loom::cli
