#include "engine/train/arguments.h"

#include <sched.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <limits>
#include <map>
#include <sstream>
#include <thread>
#include <utility>

#include "engine/core/error.h"
#include "engine/core/spelling.h"

namespace loom::train {
namespace {

// --- Values

template <class Number>
std::optional<Number> parse_number(const std::string& text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Flags of one subcommand: CLI11 splits and prints them, the values are read here so that every refusal has one form.
class Flags {
 public:
  explicit Flags(CLI::App& app) : app_(app) {}

  // The flags added from here on are printed under this heading.
  void group(std::string heading) { group_ = std::move(heading); }

  template <class Integer>
  void whole(const std::string& name, Integer& value, std::int64_t least, const std::string& about,
             const std::string& default_text = {}) {
    add(name, "N", default_text.empty() ? fmt::to_string(value) : default_text, about,
        [=, &value](const std::string& text) {
          const auto number = parse_number<Integer>(text);
          if (!number || std::cmp_less(*number, least)) {
            config_error("{} is {}; use a whole number of at least {}", first_name(name), text, least);
          }
          value = *number;
        });
  }

  // `allowed` says in words what `holds` tests.
  void real(const std::string& name, double& value, bool (*holds)(double), std::string_view allowed,
            const std::string& about) {
    add(name, "X", fmt::to_string(value), about, [=, &value](const std::string& text) {
      const auto number = parse_number<double>(text);
      if (!number || !std::isfinite(*number) || !holds(*number)) config_error("{} is {}; use {}", name, text, allowed);
      value = *number;
    });
  }

  template <class Enum>
  void choice(const std::string& name, Enum& value, const std::vector<std::pair<std::string, Enum>>& choices,
              const std::string& about) {
    const auto current = std::ranges::find(choices, value, &std::pair<std::string, Enum>::second);
    std::vector<std::string> words;
    for (const auto& [word, meaning] : choices) words.push_back(word);
    add(name, fmt::format("{{{}}}", fmt::join(words, ",")), current->first, about,
        [=, &value](const std::string& text) {
          const auto chosen = std::ranges::find(choices, text, &std::pair<std::string, Enum>::first);
          if (chosen == choices.end()) {
            const auto nearest = nearest_spelling(text, words);
            config_error("{} is {}; use {}{}", name, text, fmt::join(words, ", "),
                         nearest ? fmt::format(" (did you mean {}?)", *nearest) : "");
          }
          value = chosen->second;
        });
  }

  template <class Text>
  CLI::Option* text(const std::string& name, const std::string& type, Text& value, const std::string& about,
                    const std::string& default_text = {}) {
    return add(name, type, default_text, about, [=, &value](const std::string& given) {
      if (given.empty()) config_error("{} is empty; give it a value or leave it out", name);
      value = given;
    });
  }

  void paths(const std::string& name, const std::string& type, std::vector<std::filesystem::path>& value,
             const std::string& about) {
    app_.add_option(
            name,
            [name, type, &value, &app = app_](const std::vector<std::string>& given) {
              for (const std::string& word : given) check_is_value(app, name, type, word);
              value.assign(given.begin(), given.end());
              return true;
            },
            about)
        ->type_name(type)
        ->expected(1, std::numeric_limits<std::int16_t>::max())
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
        ->group(group_);
  }

  void toggle(const std::string& name, bool& value, const std::string& about) {
    app_.add_flag(name, value, about)->disable_flag_override()->group(group_);
  }

  // Notes in `given` that a flag with `values` values is there; not shown in the help.
  void noted(const std::string& name, int values, std::vector<std::string>& given) {
    const auto note = [name, &given](const std::vector<std::string>&) {
      given.push_back(name);
      return true;
    };
    app_.add_option(name, note)->expected(values)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)->group("");
  }

 private:
  static std::string first_name(const std::string& names) { return names.substr(0, names.find(',')); }

  // CLI11 takes a flag's first value as it comes, even when it is the next flag. Only a TEXT may begin with dashes.
  static void check_is_value(const CLI::App& app, const std::string& name, const std::string& type,
                             const std::string& word) {
    const bool flag = type == "TEXT" ? app.get_option_no_throw(word) != nullptr : word.starts_with("--");
    if (flag)
      config_error("{} needs a value, but {} follows; give {} {}", first_name(name), word, first_name(name), type);
  }

  template <class Take>
  CLI::Option* add(const std::string& name, const std::string& type, const std::string& default_text,
                   const std::string& about, Take take) {
    return app_
        .add_option(
            name,
            [name, type, take, &app = app_](const std::vector<std::string>& given) {
              if (given.size() > 1) {
                config_error("{} is given {} times ({}); keep one", first_name(name), given.size(),
                             fmt::join(given, ", "));
              }
              check_is_value(app, name, type, given.front());
              take(given.front());
              return true;
            },
            about)
        ->type_name(type)
        ->default_str(default_text)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
        ->group(group_);
  }

  CLI::App& app_;
  std::string group_;
};

bool positive(double x) { return x > 0; }
bool not_negative(double x) { return x >= 0; }
bool below_one(double x) { return x >= 0 && x < 1; }

// --- The flags of `train`

void add_model_and_data(Flags& flags, TrainArguments& a) {
  flags.group("Model (one of the first two)");
  flags.text("--model-config", "FILE", a.model_config, "Shape of a model that starts with fresh weights");
  flags.text("--init-from-hf-path", "DIR", a.init_from_hf_path, "Model to start from: config.json and safetensors");
  flags.group("Data");
  flags.paths("--data-path", "PATH", a.data_path, "Training data, one or more");
  flags.whole("--seq-length", a.seq_length, 1, "Tokens of a sequence");
  flags.real("--held-out-fraction", a.held_out_fraction, below_one, "a number from 0 to below 1",
             "Share of the data kept for evaluation; 0 = no evaluation");
}

void add_batch_and_schedule(Flags& flags, TrainArguments& a) {
  flags.group("Batch and schedule");
  flags.whole("--micro-batch-size", a.micro_batch_size, 1, "Sequences of one forward and backward on a rank");
  flags.whole("--global-batch-size", a.global_batch_size, 1, "Sequences of a step on all ranks",
              "micro-batch-size x ranks");
  flags.whole("--train-iters", a.train_iters, 1, "Optimizer steps");
  flags.real("--lr", a.lr, positive, "a number above 0", "Largest learning rate");
  flags.real("--min-lr", a.min_lr, not_negative, "a number of at least 0", "Learning rate at the end of the decay");
  flags.choice<LrDecayStyle>("--lr-decay-style", a.lr_decay_style,
                             {{"constant", LrDecayStyle::kConstant},
                              {"linear", LrDecayStyle::kLinear},
                              {"cosine", LrDecayStyle::kCosine},
                              {"inverse-square-root", LrDecayStyle::kInverseSquareRoot}},
                             "How the learning rate falls after the warm-up");
  flags.whole("--lr-decay-iters", a.lr_decay_iters, 1, "Steps until --min-lr is reached, warm-up included",
              "train-iters");
  flags.whole("--lr-warmup-iters", a.lr_warmup_iters, 0, "Steps in which the learning rate rises from 0");
}

void add_optimizer(Flags& flags, TrainArguments& a) {
  flags.group("Optimizer (AdamW)");
  flags.real("--weight-decay", a.weight_decay, not_negative, "a number of at least 0",
             "Decay of the weights, times lr");
  flags.real("--clip-grad", a.clip_grad, not_negative, "a number of at least 0",
             "Largest gradient norm; 0 = no clipping");
  flags.real("--adam-beta1", a.adam_beta1, below_one, "a number from 0 to below 1", "Decay of the first moment");
  flags.real("--adam-beta2", a.adam_beta2, below_one, "a number from 0 to below 1", "Decay of the second moment");
  flags.real("--adam-eps", a.adam_eps, positive, "a number above 0", "Added to the root of the second moment");
}

void add_execution(Flags& flags, TrainArguments& a) {
  flags.group("Sharding");
  flags.toggle("--use-torch-fsdp2", a.use_torch_fsdp2, "Shard the FSDP2 way; needs --fsdp2-config-path");
  flags.text("--fsdp2-config-path", "FILE", a.fsdp2_config_path, "fsdp2_config.yaml");
  for (const char* name : {"--recompute-granularity", "--recompute-method", "--recompute-num-layers"}) {
    flags.noted(name, 1, a.megatron_recompute_flags);
  }
  flags.noted("--recompute-activations", 0, a.megatron_recompute_flags);
  flags.group("Schedule");
  flags.toggle("--print-schedule", a.print_schedule,
               "Print what the second step issued, stream by stream, and the prefetches that were in vain");
  flags.group("Execution");
  flags.choice<std::string>("--distributed-backend", a.distributed_backend,
                            {{"nccl", "nccl"}, {"gloo", "gloo"}, {"npu:hccl,cpu:gloo", "npu:hccl,cpu:gloo"}},
                            "Accepted as Megatron has it; changes nothing here, offload_to_cpu included");
  flags.whole("--nproc-per-node,--nproc_per_node", a.ranks, 1, "Ranks, as threads of this process");
  flags.whole("--compute-threads", a.compute_threads, 1, "Threads of one rank", "cores / ranks");
  flags.choice<DeviceExecutor>(
      "--device-executor", a.device_executor,
      {{"threaded", DeviceExecutor::kThreaded}, {"inline", DeviceExecutor::kInline}},
      "Collectives and copies behind the computation, or everything when it is issued; same bits");
  flags.choice<KernelGrain>("--kernel-grain", a.kernel_grain,
                            {{"fast", KernelGrain::kFast}, {"pytorch", KernelGrain::kPytorch}},
                            "Fused kernels, or composed as PyTorch eager composes them");
  flags.toggle("--use-fused-rmsnorm", a.use_fused_rmsnorm, "Fused RMS norm; always on in the fast grain");
  flags.toggle("--use-fused-swiglu", a.use_fused_swiglu, "Fused SwiGLU; always on in the fast grain");
  flags.toggle("--use-fused-rotary-pos-emb", a.use_fused_rotary_pos_emb,
               "Fused rotary embedding; always on in the fast grain");
  flags.toggle("--use-flash-attn", a.use_flash_attn, "Flash attention; always on in the fast grain");
  flags.whole("--distributed-timeout-minutes", a.distributed_timeout_minutes, 1, "How long a rank waits for its peers");
  flags.whole("--seed", a.seed, 0, "Seed of weights and data order");
}

void add_output(Flags& flags, TrainArguments& a) {
  flags.group("Output");
  flags.text("--save", "DIR", a.save, "Where the trained model is written; not given: nowhere");
  flags.text("--metrics-path", "FILE", a.metrics_path, "One JSON line a step", "metrics.jsonl in --save or here");
  flags.whole("--log-interval", a.log_interval, 1, "Steps between printed lines");
  flags.whole("--eval-interval", a.eval_interval, 1, "Steps between evaluations");
  flags.whole("--eval-iters", a.eval_iters, 0, "Batches of one evaluation; 0 = no evaluation");
  flags.whole("--sample-bytes", a.sample_bytes, 0, "Length of the text generated after training; 0 = none");
  flags.text("--prompt", "TEXT", a.prompt, "What that text continues");
}

void add_generate(Flags& flags, GenerateArguments& a) {
  flags.group("Model and prompt");
  flags.text("MODEL_DIR", "DIR", a.model_dir, "Folder with config.json and safetensors");
  flags.text("--prompt", "TEXT", a.prompt, "The text to continue");
  flags.group("Sampling");
  flags.whole("--max-new-tokens", a.max_new_tokens, 1, "Tokens to generate");
  flags.real("--temperature", a.temperature, not_negative, "a number of at least 0", "0 = always the likeliest token");
  flags.whole("--top-k", a.top_k, 0, "Draw from the k likeliest tokens; 0 = from all; needs --temperature");
  flags.whole("--seed", a.seed, 0, "Seed of the draws");
}

// --- Checks over several flags

bool given(const CLI::App& app, const std::string& name) { return app.get_option(name)->count() > 0; }

void check_sources(const TrainArguments& a) {
  if (a.model_config && a.init_from_hf_path) {
    config_error(
        "--model-config and --init-from-hf-path are both given; keep one: fresh weights or those of the folder");
  }
  if (!a.model_config && !a.init_from_hf_path) {
    config_error("no model is given; use --model-config FILE (fresh weights) or --init-from-hf-path DIR");
  }
  if (a.data_path.empty()) config_error("no data is given; use --data-path PATH");
  if (a.fsdp2_config_path && !a.use_torch_fsdp2) {
    config_error("--fsdp2-config-path is {}, but --use-torch-fsdp2 is not given; add it",
                 a.fsdp2_config_path->string());
  }
  if (a.use_torch_fsdp2 && !a.fsdp2_config_path) {
    config_error("--use-torch-fsdp2 is given without --fsdp2-config-path; add --fsdp2-config-path FILE");
  }
  if (a.print_schedule && !a.use_torch_fsdp2) {
    config_error("--print-schedule is given, but --use-torch-fsdp2 is not, so nothing is gathered; add it");
  }
}

void settle_ranks(const CLI::App& app, const LaunchContext& context, TrainArguments& a) {
  int local_ranks = a.ranks;
  if (context.mpi_ranks > 0) {
    if (given(app, "--nproc-per-node")) {
      config_error("--nproc-per-node is {}, but the MPI launcher started {} ranks, one a process; leave it out",
                   a.ranks, context.mpi_ranks);
    }
    a.ranks = context.mpi_ranks;
    local_ranks = context.mpi_local_ranks > 0 ? context.mpi_local_ranks : context.mpi_ranks;
  }
  if (!given(app, "--compute-threads")) a.compute_threads = std::max(1, context.cores / local_ranks);
}

void settle_batch(const CLI::App& app, TrainArguments& a) {
  const std::int64_t unit = std::int64_t{a.micro_batch_size} * a.ranks;
  if (unit > std::numeric_limits<int>::max()) {
    config_error("--micro-batch-size {} x {} ranks is {} sequences a step, above {}; use less", a.micro_batch_size,
                 a.ranks, unit, std::numeric_limits<int>::max());
  }
  if (!given(app, "--global-batch-size")) a.global_batch_size = static_cast<int>(unit);
  if (a.global_batch_size % unit == 0) return;
  const std::int64_t below = a.global_batch_size / unit * unit;
  config_error("--global-batch-size is {}, but --micro-batch-size {} x {} {} needs a multiple of {}; use {}",
               a.global_batch_size, a.micro_batch_size, a.ranks, a.ranks == 1 ? "rank" : "ranks", unit,
               below == 0 ? fmt::to_string(unit) : fmt::format("{} or {}", below, below + unit));
}

void settle_schedule(const CLI::App& app, TrainArguments& a) {
  if (!given(app, "--lr-decay-iters")) a.lr_decay_iters = a.train_iters;
  if (a.min_lr > a.lr) config_error("--min-lr is {}, above --lr {}; use at most --lr", a.min_lr, a.lr);
  const std::int64_t limit = std::min(a.train_iters, a.lr_decay_iters);
  if (a.lr_warmup_iters >= limit) {
    config_error("--lr-warmup-iters is {}, but {} is {}; use less than {}", a.lr_warmup_iters,
                 limit == a.train_iters ? "--train-iters" : "--lr-decay-iters", limit, limit);
  }
}

void settle_output(const CLI::App& app, TrainArguments& a) {
  if (a.metrics_path.empty()) a.metrics_path = a.save.value_or("") / "metrics.jsonl";
  if (!a.prompt.empty() && a.sample_bytes == 0) {
    config_error("--prompt is given, but --sample-bytes is 0, so no text is generated; give --sample-bytes N");
  }
  for (const char* flag : {"--eval-iters", "--eval-interval"}) {
    if (a.held_out_fraction == 0 && given(app, flag)) {
      config_error(
          "{} is given, but --held-out-fraction is 0, so no data is kept for evaluation; use a fraction above 0", flag);
    }
  }
}

void settle_kernels(TrainArguments& a) {
  if (a.kernel_grain != KernelGrain::kFast) return;
  a.use_fused_rmsnorm = a.use_fused_swiglu = a.use_fused_rotary_pos_emb = a.use_flash_attn = true;
}

void settle(const CLI::App& app, const LaunchContext& context, TrainArguments& a) {
  check_sources(a);
  settle_ranks(app, context, a);
  settle_batch(app, a);
  settle_schedule(app, a);
  settle_output(app, a);
  settle_kernels(a);
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

// Megatron's flags whose place is elsewhere here.
const std::map<std::string, std::string, std::less<>>& moved_flags() {
  static const std::map<std::string, std::string, std::less<>> moved = {
      {"--bf16", "set param_dtype: bf16 in the file of --fsdp2-config-path"},
      {"--fp16", "set param_dtype: fp16 in the file of --fsdp2-config-path"},
      {"--use-distributed-optimizer", "remove it; with FSDP2 the optimizer state is sharded with the parameters"},
      {"--load", "use --init-from-hf-path DIR"},
  };
  return moved;
}

std::vector<std::string> flag_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;  // not for users
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

[[noreturn]] void refuse_extra(const CLI::App& app, const std::vector<std::string>& extras) {
  const auto flag =
      std::ranges::find_if(extras, [](const std::string& e) { return e.size() > 1 && e.starts_with('-'); });
  if (flag == extras.end()) {
    config_error("'{}' belongs to no flag; see shardloom {} --help", extras.front(), app.get_name());
  }
  const std::string name = flag->substr(0, flag->find('='));
  if (const auto moved = moved_flags().find(name); moved != moved_flags().end()) {
    config_error("{} is not a flag of shardloom {}; {}", name, app.get_name(), moved->second);
  }
  const auto nearest = nearest_spelling(name, flag_names(app));
  config_error(
      "unknown flag {}; {}", name,
      nearest ? fmt::format("did you mean {}?", *nearest) : fmt::format("see shardloom {} --help", app.get_name()));
}

[[noreturn]] void refuse_command(const std::vector<std::string>& words) {
  const std::vector<std::string> commands = {"train", "generate"};
  if (words.empty())
    config_error("no command is given; use shardloom train or shardloom generate (--help lists their flags)");
  const auto nearest = nearest_spelling(words.front(), commands);
  config_error("'{}' is not a command; {}", words.front(),
               nearest ? fmt::format("did you mean {}?", *nearest) : "use train or generate");
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

constexpr const char* kTrainExample =
    "Example:\n  shardloom train --model-config configs/models/quickstart.yaml --data-path corpus.txt --nproc-per-node "
    "2 \\\n"
    "    --use-torch-fsdp2 --fsdp2-config-path configs/fsdp2/quickstart.yaml --train-iters 200 --save out\n";
constexpr const char* kGenerateExample =
    "Example:\n  shardloom generate out --prompt \"Once upon a time\" --max-new-tokens 40\n";

// The program's parser; subcommands write into the two structs.
class Parser {
 public:
  Parser() {
    app_.get_formatter()->column_width(46);
    train_.footer(kTrainExample);
    generate_.footer(kGenerateExample);
    for (CLI::App* app : {&app_, &train_, &generate_}) app->allow_extras();
    // These default to what the grain says, which is known only later.
    values_.use_fused_rmsnorm = values_.use_fused_swiglu = false;
    values_.use_fused_rotary_pos_emb = values_.use_flash_attn = false;
    Flags train(train_);
    add_model_and_data(train, values_);
    add_batch_and_schedule(train, values_);
    add_optimizer(train, values_);
    add_execution(train, values_);
    add_output(train, values_);
    Flags generate(generate_);
    add_generate(generate, generate_values_);
  }

  ParsedCommand run(int argc, const char* const* argv, const LaunchContext& context) {
    try {
      app_.parse(argc, argv);
    } catch (const CLI::Success& help) {
      std::ostringstream text;
      const int code = app_.exit(help, text, text);
      return EarlyExit{code, text.str()};
    } catch (const CLI::ParseError& error) {
      refuse_parse(error);
    }
    if (!app_.remaining().empty() || app_.get_subcommands().empty()) refuse_command(app_.remaining());
    const CLI::App& chosen = *app_.get_subcommands().front();
    if (const auto extras = chosen.remaining(); !extras.empty()) refuse_extra(chosen, extras);
    if (&chosen == &generate_) {
      check(generate_values_);
      return generate_values_;
    }
    settle(train_, context, values_);
    return values_;
  }

 private:
  CLI::App app_{"Shardloom: train sharded models and see what the sharding does.", "shardloom"};
  CLI::App& train_ = *app_.add_subcommand("train", "Train a model on one or more ranks.");
  CLI::App& generate_ = *app_.add_subcommand("generate", "Continue a text with a trained model.");
  TrainArguments values_;
  GenerateArguments generate_values_;
};

int environment_number(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const char* text = std::getenv(name);
    if (text == nullptr) continue;
    const auto number = parse_number<int>(text);
    if (!number || *number < 1)
      config_error("the environment variable {} is '{}', expected a number of ranks", name, text);
    return *number;
  }
  return 0;
}

int usable_cores() {
  cpu_set_t mask;
  if (sched_getaffinity(0, sizeof(mask), &mask) == 0) return std::max(1, CPU_COUNT(&mask));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace

LaunchContext LaunchContext::detect() {
  return {.cores = usable_cores(),
          .mpi_ranks = environment_number({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}),
          .mpi_local_ranks = environment_number({"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"})};
}

ParsedCommand parse_arguments(int argc, const char* const* argv, const LaunchContext& context) {
  return Parser().run(argc, argv, context);
}

}  // namespace loom::train
