#include "engine/train/recompute_flags.h"

#include "engine/core/error.h"
#include "models/decoder/layer_recompute.h"

namespace loom::train {
namespace {

using models::RecomputeGranularity;
using sharding::Fsdp2Config;
using sharding::RecomputeKeep;

void refuse_beside_modules(const ParallelOptions& options, const Fsdp2Config& config) {
  if (options.megatron_recompute_flags.empty() || config.recompute_modules.empty()) return;
  config_error("{}: recompute_modules is given beside {}; remove the flag: the file says what is recomputed",
               config.key_mark("recompute_modules").text(), options.megatron_recompute_flags.front());
}

void refuse_beside_key(const Fsdp2Config& config, std::string_view key, std::string_view flag) {
  if (!config.places.contains(key)) return;
  config_error("{}: {} is given, and {} too; keep one of them", config.key_mark(key).text(), key, flag);
}

// A flag without anything to act on.
void check_acts(bool acts, const Fsdp2Config* config, std::string_view flag, std::string_view what) {
  if (acts) return;
  config_error("{} is given, and nothing is recomputed {}; list recompute_modules in {}, or remove it", flag, what,
               config == nullptr ? "a file for --use-torch-fsdp2 --fsdp2-config-path FILE" : config->file_name);
}

}  // namespace

void apply_recompute_flags(const ParallelOptions& options, bool is_edited, Fsdp2Config* config) {
  const bool whole_layers = options.recompute_layers.granularity == RecomputeGranularity::kFull;
  const bool modules = is_edited || (config != nullptr && !config->recompute_modules.empty());
  if (options.recompute_keep != RecomputeKeep::kNone) {
    check_acts(whole_layers || modules, config, fmt::format("--recompute-keep {}", word_of(options.recompute_keep)),
               "whole");
  }
  if (options.recompute_every > 0) {
    check_acts(modules, config, fmt::format("--recompute-every {}", options.recompute_every), "by recompute_modules");
  }
  if (config == nullptr) return;
  refuse_beside_modules(options, *config);
  if (options.recompute_keep != RecomputeKeep::kNone) {
    refuse_beside_key(*config, "recompute_keep", "--recompute-keep");
    config->recompute_keep = options.recompute_keep;
  }
  if (options.recompute_every > 0) {
    refuse_beside_key(*config, "recompute_every", "--recompute-every");
    config->recompute_every = options.recompute_every;
  }
}

bool is_reentrant_recompute(const ParallelOptions& options, const Fsdp2Config* config) {
  if (config == nullptr || !config->use_reentrant) return false;
  if (!config->recompute_modules.empty()) return true;
  return options.recompute_layers.any() && config->places.contains("use_reentrant");
}

std::vector<sharding::RecomputedModule> choose_layers(const nn::Module& model, const ParallelOptions& options,
                                                      bool fused_attention, const Fsdp2Config* config,
                                                      std::vector<std::string>& said) {
  const bool reentrant = is_reentrant_recompute(options, config);
  const RecomputeKeep keep = config == nullptr ? options.recompute_keep : config->recompute_keep;
  if (reentrant && keep != RecomputeKeep::kNone && options.recompute_layers.any()) {
    config_error(
        "{}: use_reentrant is true, which keeps no results of operators, and {} is {}; write use_reentrant: "
        "false",
        config->value_mark("use_reentrant").text(),
        config->places.contains("recompute_keep") ? "recompute_keep" : "--recompute-keep", word_of(keep));
  }
  return models::recomputed_layers(model, options.recompute_layers,
                                   {.use_reentrant = reentrant, .keep = keep, .fused_attention = fused_attention},
                                   said);
}

}  // namespace loom::train
