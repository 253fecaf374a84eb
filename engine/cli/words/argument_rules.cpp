#include "engine/cli/words/argument_rules.h"

#include <fmt/format.h>
#include <numeric>

#include "engine/cli/words/epoch_rules.h"
#include "engine/cli/words/host_checks.h"
#include "engine/cli/words/host_optimizer_checks.h"
#include "engine/cli/words/memory_checks.h"
#include "engine/cli/words/recompute_checks.h"
#include "engine/cli/words/schedule_rules.h"
#include "engine/cli/words/swap_checks.h"
#include "engine/config/share_folder.h"
#include "engine/core/rounding.h"
#include "engine/core/shown_text.h"
#include "engine/job/foreign.h"
#include "engine/job/rules.h"
#include "engine/objective/stage.h"
#include "engine/train/parameter_rules.h"
#include "engine/virtual_time/fp8.h"
#include "models/hub/model_source.h"

namespace loom::cli {
namespace {

void settle_checkpoints(job::Job& a) {
  const auto& word = a.checkpoint.ckpt_format_word;
  if (word == "torch_dist") a.checkpoint.ckpt_format = train::CheckpointFormat::kTorchDist;
  if (word == "torch_dcp" || job::keeps_checkpoints(a)) a.checkpoint.ckpt_format = train::CheckpointFormat::kTorchDcp;
}

void check_sharding(const job::Job& a, Refusals& refusals) {
  if (a.parallel.fsdp2_config_path && !a.parallel.use_torch_fsdp2) {
    refusals.add(fmt::format("--fsdp2-config-path is {}, but --use-torch-fsdp2 is not given; add it",
                             a.parallel.fsdp2_config_path->string()));
  }
  if (a.parallel.use_torch_fsdp2 && !a.parallel.fsdp2_config_path && !a.parallel.fsdp2_config) {
    refusals.add("--use-torch-fsdp2 is given without --fsdp2-config-path; add --fsdp2-config-path FILE");
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
  check_limit("--muon-num-ns-steps", a.optimizer.muon.steps, 100);
  check_limit("--seq-length", a.data.seq_length, 1 << 30);
  check_limit("--compute-threads", a.launch.compute_threads, kMostThreads, ", best the cores of this machine");
  check_limit("--distributed-timeout-minutes", a.launch.distributed_timeout_minutes, 60 * 24 * 365, ", a year");
}

// After the ranks and the batch are known.
void check_planned_work(const job::Job& a) {
  check_limit("--world-size", a.launch.ranks, kMostRanks);
  const std::int64_t unit = std::int64_t{a.schedule.micro_batch_size} * train::data_ranks(a.parallel, a.launch.ranks);
  const std::int64_t micro_batches = a.schedule.global_batch_size / unit;
  if (micro_batches <= kMostPlannedMicroBatches) return;
  config_error(
      "--global-batch-size is {}, which makes {} micro-batches a step, above the {} that a plan goes through; use at "
      "most {}, or a larger --micro-batch-size or --world-size",
      a.schedule.global_batch_size, micro_batches, kMostPlannedMicroBatches, kMostPlannedMicroBatches * unit);
}

void settle_ranks(const Command& app, bool planned, const launch::Start& start, job::Job& a) {
  if (start.first_runs_all() && !planned) {
    if (given(app, "--nproc-per-node") && a.launch.ranks != start.processes) {
      config_error("--nproc-per-node is {}, but the launcher started {} processes; remove it", a.launch.ranks,
                   start.processes);
    }
    a.launch.ranks = start.processes;
  }
  int local_ranks = a.launch.ranks;
  if (!planned && !start.ranks_are_processes()) {
    check_limit("--nproc-per-node", a.launch.ranks, kMostThreadRanks,
                ", as each is a thread; more ranks are processes (mpirun)");
  }
  if (start.ranks_are_processes()) local_ranks = take_processes(app, start, a.launch.ranks);
  const auto worker_num = job::foreign_value(a.written, "--worker-num");
  if (worker_num && *worker_num != fmt::to_string(a.launch.ranks)) {
    config_error("--worker-num is {}, but {} rank{} run; write --local-worker-num {} beside it, or remove it",
                 *worker_num, a.launch.ranks, a.launch.ranks == 1 ? "" : "s", *worker_num);
  }
  if (!given(app, "--compute-threads")) a.launch.compute_threads = std::max(1, start.cores / local_ranks);
}

// `most`: sequences of a step.
void settle_batch(const Command& app, std::int64_t most, job::Job& a) {
  const int ranks = train::data_ranks(a.parallel, a.launch.ranks);
  const std::int64_t unit = std::int64_t{a.schedule.micro_batch_size} * ranks;
  if (unit > most) {
    config_error("--micro-batch-size {} x {} ranks is {} sequences a step, above {}; use less",
                 a.schedule.micro_batch_size, ranks, unit, most);
  }
  check_limit("--global-batch-size", a.schedule.global_batch_size, most);
  if (!given(app, "--global-batch-size")) a.schedule.global_batch_size = static_cast<int>(unit);
  if (a.schedule.global_batch_size % unit == 0) return;
  const std::int64_t below = a.schedule.global_batch_size / unit * unit;
  const std::string_view who = ranks < a.launch.ranks ? "groups of ranks that share sequences"
                               : ranks == 1           ? "rank"
                                                      : "ranks";
  config_error("--global-batch-size is {}, but --micro-batch-size {} x {} {} needs a multiple of {}; use {}",
               a.schedule.global_batch_size, a.schedule.micro_batch_size, ranks, who, unit,
               below == 0 ? fmt::to_string(unit) : fmt::format("{} or {}", below, below + unit));
}

void settle_stage(job::Job& a) {
  const objective::StageRow& stage = objective::row_of(a.objective.stage);
  a.data.is_pairwise_dataset = stage.has_pairs;
  a.data.numbered_samples = a.objective.ref_logps_cache.has_value();
  a.data.is_instruction_dataset = a.data.is_instruction_dataset || a.objective.stage.has_value();
  a.objective.preference = a.objective.*stage.preference;
  a.objective.preference.pref_ftx = a.objective.dpo.pref_ftx;
}

void settle_output(job::Job& a) {
  if (a.log.metrics_path.empty()) a.log.metrics_path = a.checkpoint.save.value_or("") / "metrics.jsonl";
  if (a.schedule.skip_train) a.checkpoint.no_load_optim = true;  // and with it the schedule
}

void settle_presets(models::ModelOptions& model_options, train::ParallelOptions& parallel) {
  // A recording is planned in place of the model that a configuration file names.
  if (model_options.model_graph) {
    model_options.model_config.reset();
    model_options.init_from_hf_path.reset();
    model_options.made_config.reset();
    model_options.shape = {};
  }
  if (model_options.model_config)
    model_options.model_config = config::find_preset(model_options.model_config->string(), "models", "--model-config");
  if (parallel.fsdp2_config_path && !parallel.fsdp2_config) {
    parallel.fsdp2_config_path =
        config::find_preset(parallel.fsdp2_config_path->string(), "fsdp2", "--fsdp2-config-path");
  }
}

// For what reads the files. What is not found is said at the end.
void find_presets_early(job::Job& a) {
  try {
    settle_presets(a.model, a.parallel);
  } catch (const ConfigError&) {
  }
}

void settle_profile(const Command& app, launch::LaunchOptions& launch, observe::ProfileOptions& profile_options) {
  observe::ProfileOptions& p = profile_options;
  if (!p.enabled) return;
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
  if (!p.all_ranks) return;
  if (given(app, "--profile-ranks") && std::ssize(p.ranks) != launch.ranks) {
    config_error(
        "{}: profile.ranks is [-1], all ranks, and --profile-ranks is {} on the command line; remove one of them",
        p.mm_tool->string(), fmt::join(p.ranks, " "));
  }
  p.ranks.resize(static_cast<std::size_t>(launch.ranks));
  std::iota(p.ranks.begin(), p.ranks.end(), 0);
}

// Throughput is said in Megatron's line and in TensorBoard; elsewhere the flag of a launch script changes nothing.
void settle_logging(log::LogOptions& log_options, job::WrittenFlags& written_options) {
  const bool to_tensorboard = log_options.tensorboard_dir && log_options.log_timers_to_tensorboard;
  if (log_options.log_throughput && log_options.log_format == log::LogFormat::kShort && !to_tensorboard) {
    log_options.log_throughput = false;
    written_options.without_effect.emplace_back("--log-throughput");
  }
  if (log_options.log_params_norm && log_options.log_format == log::LogFormat::kShort && !log_options.tensorboard_dir) {
    log_options.log_params_norm = false;
    written_options.without_effect.emplace_back("--log-params-norm");
  }
}

// The largest power of two that is at most total / batch, and at least 1.
std::int64_t chunk_of(std::int64_t total, std::int64_t batch) {
  std::int64_t chunk = 1;
  while (chunk <= total / batch / 2) chunk *= 2;
  return chunk;
}

void settle_kernels(job::Job& a) {
  if (a.kernels.set == train::KernelSet::kFast) a.kernels.fused = nn::KernelOptions::fast();
  if (a.objective.total_chunk_size == 0) return;
  a.objective.loss_chunk_size = chunk_of(a.objective.total_chunk_size, a.schedule.micro_batch_size);
}

void refuse_what_is_searched(const Command& app, const std::string& search, const std::string& what,
                             const std::string& flag) {
  if (!given(app, flag)) return;
  config_error("--fit {} searches {}, but {} is {}; remove one of them", search, what, flag, app.text_of(flag));
}

void check_fp8(const PlanArguments& a) {
  if (a.fp8_param_gather && !a.fp8_recipe) {
    config_error("--fp8-param-gather is given without --fp8-recipe; add --fp8-recipe tensorwise, or remove it");
  }
  if (!a.fp8_recipe || virtual_time::find_fp8_recipe(*a.fp8_recipe) != nullptr) return;
  std::vector<std::string_view> names;
  for (const virtual_time::Fp8Recipe& recipe : virtual_time::fp8_recipes()) names.push_back(recipe.name);
  config_error("--fp8-recipe is {}; use {}", shown_text(*a.fp8_recipe), fmt::join(names, ", "));
}

void check_write_config(const Command& app, const PlanArguments& a) {
  const bool searches = a.sweep || a.fit != PlanArguments::Fit::kNothing;
  if (given(app, "--row") && (!a.sweep || !a.write_config)) {
    config_error("--row is {}, the row of a sweep that is written; add {}, or remove it", a.row,
                 a.sweep ? "--write-config FILE" : "--sweep and --write-config FILE");
  }
  if (!a.write_config) return;
  if (a.software) {
    config_error(
        "--write-config is {}, but --software {} plans with the kernels of that release, which training does not have; "
        "remove one of them",
        a.write_config->string(), *a.software);
  }
  if (a.fp8_recipe) {
    config_error(
        "--write-config is {}, but --fp8-recipe {} plans products in FP8, which training does not have; remove one of "
        "them",
        a.write_config->string(), *a.fp8_recipe);
  }
  if (!searches) {
    config_error("--write-config is {}, which gets what a search chose; add --sweep or --fit, or remove it",
                 a.write_config->string());
  }
  if (!a.train.parallel.use_torch_fsdp2) {
    config_error(
        "--write-config is {}, a fsdp2_config.yaml, but the job has none; add --use-torch-fsdp2 and "
        "--fsdp2-config-path, or remove it",
        a.write_config->string());
  }
  if (a.train.parallel.fsdp2_config && !a.train.model.made_config && !a.train.model.mm_model) {
    config_error(
        "--write-config is {}, a fsdp2_config.yaml, but the sharding stands in {}; write it as one first: "
        "shardloom config FILE --to flat > fsdp2_config.yaml",
        a.write_config->string(), train::sharding_file(a.train.parallel));
  }
}

// The length is unknown until the search: nothing is refused because of it before.
void settle_searched_length(const Command& app, job::Job& a) {
  refuse_what_is_searched(app, "seq-length", "the sequence", "--seq-length");
  if (a.model.made_config && !a.model.mm_model && !given(app, "--max-position-embeddings")) {
    config_error(
        "--fit seq-length searches the sequence, but a model of --num-layers and other flags has as many positions as "
        "--seq-length; add --max-position-embeddings");
  }
  a.data.seq_length = 1;
}

void check_what_if(const Command& app, const PlanArguments& a) {
  for (auto one = a.what_if.begin(); one != a.what_if.end(); ++one) {
    if (std::find_if(a.what_if.begin(), one, [&](const auto& other) { return other.figure == one->figure; }) != one) {
      config_error("--what-if scales {} twice; give one factor", one->figure);
    }
    if (one->figure != "memory" || !given(app, "--device-memory")) continue;
    config_error("--what-if scales memory, but --device-memory {} says it; remove one of them",
                 app.text_of("--device-memory"));
  }
}

void apply_rules(const Command& app, Program program, job::Job& a, Refusals& refusals) {
  std::vector<std::string> written;
  for (const SeenFlag& flag : app.flags()) {
    if (flag.given) written.push_back(flag.name);
  }
  const job::RuleFindings findings = job::apply_rules(a, program, written);
  for (const std::string& text : findings.refused) refusals.add(text);
  std::ranges::copy(findings.without_effect, std::back_inserter(a.written.without_effect));
}

}  // namespace

int take_processes(const Command& app, const launch::Start& start, int& ranks) {
  if (given(app, "--nproc-per-node")) {
    config_error("--nproc-per-node is {}, but the launcher started {} ranks, one a process; leave it out", ranks,
                 start.processes);
  }
  ranks = start.processes;
  return start.local_ranks(ranks);
}

void check_sources(const job::Job& a, Program program) {
  if (a.model.model_config && a.model.init_from_hf_path) {
    config_error(
        "--model-config and --init-from-hf-path are both given; keep one: fresh weights or those of the folder");
  }
  if (a.model.model_weights) {
    const bool has_other = models::has_configuration(a.model) || a.model.shape != models::ShapeOptions{};
    if (has_other || a.model.model_graph) {
      config_error("--model-weights is given beside another model; keep one: weights alone, or a configuration");
    }
  } else if (!a.model.model_graph && !models::has_configuration(a.model)) {
    config_error(
        "no model is given; use --model-config FILE (fresh weights), --init-from-hf-path DIR, or Megatron's --num-layers, "
        "--hidden-size, --num-attention-heads and --vocab-size");
  }
  const auto& [train, valid, test] = a.data.part_data_path;
  const bool has_data = !a.data.data_path.empty() || a.data.mm_data || !train.empty() ||
                        (a.schedule.skip_train && !(valid.empty() && test.empty()));
  if (!has_data && program == Program::kShardloomTrain) config_error("no data is given; use --data-path PATH");
}

// Ranks, batch and schedule: each needs the ones before it, and numbers that are what the command line says.
void settle_steps(const Command& app, Program program, const launch::Start& start, job::Job& a) {
  settle_ranks(app, plans(program), start, a);
  settle_batch(app, plans(program) ? std::numeric_limits<int>::max() : kMostBatch, a);
  if (plans(program)) check_planned_work(a);
  settle_epochs(app, program, a);
  settle_schedule(app, a.schedule, a.written);
  check_weight_decay(app, a.schedule);
  settle_loss_scale(app, a.optimizer, a.written);
}

void settle(const Command& app, Program program, const launch::Start& start, job::Job& a, Refusals& refusals) {
  refusals.of([&] { check_limits(a); });
  settle_swapped_recompute(a.parallel, a.swap);
  settle_recompute(app, a.parallel);
  job::settle_foreign(a.written);
  settle_stage(a);
  a.data.variable_seq_lengths =
      a.data.is_instruction_dataset && (a.data.variable_seq_lengths || a.data.no_pad_to_seq_lengths);
  if (!is_users(program)) refusals.of([&] { data::data_kind(a.data); });
  for (const std::string& item : a.optimizer.lr_scaling_plan) refusals.of([&] { train::parse_lr_scale(item); });
  apply_rules(app, program, a, refusals);
  refusals.of([&] { settle_allocator(start, a.memory); });
  refusals.of([&] { check_memory(a); });
  refusals.of([&] { check_host_optimizer(app, a); });
  check_sharding(a, refusals);
  settle_checkpoints(a);
  find_presets_early(a);
  if (refusals.parsed_well()) refusals.of([&] { settle_steps(app, program, start, a); });
  settle_output(a);
  settle_logging(a.log, a.written);
  if (refusals.parsed_well()) refusals.of([&] { settle_profile(app, a.launch, a.profile); });
  if (refusals.parsed_well()) refusals.of([&] { settle_iterations_to_skip(plans(program), a); });
  settle_kernels(a);
  refusals.of([&] { settle_swap(a); });
  refusals.raise();
  settle_host(plans(program), start, a.launch);
  settle_presets(a.model, a.parallel);
}

void check(const CompareArguments& a) {
  if (a.a.empty() || a.b.empty()) {
    config_error("{} given; use shardloom compare A B", a.a.empty() ? "no runs are" : "only one run is");
  }
}

void check(const CalibrateArguments& a) {
  if (a.kernel_times.empty()) config_error("no kernels are given; use --kernel-times FILE");
  if (a.write_profile.empty()) config_error("the fitted profile has no file; use --write-profile FILE");
}

void settle_search(const Command& app, PlanArguments& a) {
  using Fit = PlanArguments::Fit;
  check_what_if(app, a);
  if (a.price_per_device_hour && !a.tokens) {
    config_error("--price-per-device-hour is {}, but no training is priced; add --tokens, or remove it",
                 *a.price_per_device_hour);
  }
  check_swap_search(a);
  check_memory_search(a);
  if (a.sweep && a.fit != Fit::kNothing) {
    config_error("--sweep and --fit are both given, and each is a search of its own; remove one of them");
  }
  if (a.fit == Fit::kMicroBatch) refuse_what_is_searched(app, "micro-batch", "the micro-batch", "--micro-batch-size");
  if (a.fit == Fit::kSeqLength) settle_searched_length(app, a.train);
  if (a.fit == Fit::kWorldSize) {
    for (const char* flag : {"--world-size", "--nproc-per-node"}) {
      refuse_what_is_searched(app, "world-size", "the number of devices", flag);
    }
  }
  check_fp8(a);
  check_write_config(app, a);
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
