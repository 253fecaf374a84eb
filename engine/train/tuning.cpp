#include "engine/train/tuning.h"

#include <algorithm>
#include <cmath>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/train/recompute_flags.h"
#include "models/lora/adapter_folder.h"
#include "models/lora/lora.h"
#include "models/mixin/fsdp2_mixin.h"

namespace loom::train {
namespace {

models::LoraOptions of_file(const std::filesystem::path& folder, const std::string& where) {
  models::LoraOptions options = models::AdapterFolder(folder).options();
  options.where = fmt::format("{} {}", where, escaped(folder.string()));
  return options;
}

template <class T>
void check_same(const std::optional<T>& given, T stored, const char* flag, const std::string& where) {
  if (!given || *given == stored) return;
  config_error("{}: its configuration has {}, and {} is {}; leave the flag out, or give that value", where, stored,
               flag, *given);
}

models::LoraOptions of_flags(const models::LoraFlags& flags) {
  models::LoraOptions options;
  if (flags.load) {
    options = of_file(*flags.load, "--lora-load");
    check_same(flags.r, options.r, "--lora-r", options.where);
    check_same(flags.alpha, options.alpha, "--lora-alpha", options.where);
    if (flags.use_rslora && !options.use_rslora) {
      config_error("{}: its configuration has use_rslora false, and --use-rslora is given; leave the flag out",
                   options.where);
    }
    if (flags.dropout) options.dropout = *flags.dropout;  // of the training to come
    return options;
  }
  options.r = flags.r.value_or(options.r);
  options.alpha = flags.alpha.value_or(options.alpha);
  options.dropout = flags.dropout.value_or(options.dropout);
  options.use_rslora = flags.use_rslora;
  options.modules_to_save = flags.modules_to_save;
  options.where = "--lora-target-modules";
  const bool is_regex = flags.target_modules.size() == 1 &&
                        flags.target_modules.front().find_first_of("\\^$|?*+()[]") != std::string::npos &&
                        flags.target_modules.front().find("{*}") == std::string::npos;
  if (is_regex) {
    options.target_regex = flags.target_modules.front();
  } else {
    options.target_modules = flags.target_modules;
  }
  return options;
}

models::LoraOptions of_block(const sharding::LoraBlock& block) {
  const std::string where = fmt::format("{}: lora", block.mark.text());
  models::LoraOptions options;
  if (!block.pretrained_lora_path.empty()) {
    options = of_file(block.pretrained_lora_path, where + ": pretrained_lora_path");
    check_same(std::optional<std::int64_t>(block.rank), options.r, "rank", options.where);
    check_same(std::optional(block.alpha), options.alpha, "alpha", options.where);
    options.dropout = block.dropout;
    return options;
  }
  options.r = block.rank;
  options.alpha = block.alpha;
  options.dropout = block.dropout;
  options.target_modules = block.target_modules;
  if (block.init_lora_weights == "false") options.init = models::LoraInit::kRandom;
  if (block.init_lora_weights == "gaussian") options.init = models::LoraInit::kGaussian;
  options.where = where;
  return options;
}

}  // namespace

Tuning tuning_of(const models::ModelOptions& model, const ParallelOptions& parallel,
                 const sharding::Fsdp2Config* config) {
  Tuning tuning;
  for (const std::string& pattern : model.freeze) {
    tuning.freeze.push_back(sharding::ModulePattern::parse(pattern, "--freeze", {"--freeze", 0, 0}));
  }
  if (model.lora.on()) tuning.lora = of_flags(model.lora);
  if (config == nullptr) return tuning;
  tuning.freeze.insert(tuning.freeze.end(), config->freeze.begin(), config->freeze.end());
  tuning.embedding_gradients = tuning.lora && is_reentrant_recompute(parallel, config);
  if (!config->lora.enable) return tuning;
  if (tuning.lora) {
    config_error("{}: lora is enabled, and {} asks for adapters too; keep one of them", config->lora.mark.text(),
                 model.lora.load ? "--lora-load" : "--lora-target-modules");
  }
  tuning.lora = of_block(config->lora);
  tuning.embedding_gradients = is_reentrant_recompute(parallel, config);
  return tuning;
}

std::vector<std::string> apply_tuning(nn::Module& model, const Tuning& tuning) {
  std::vector<std::string> said;
  if (tuning.lora) {
    const auto lora = models::add_lora(model, *tuning.lora);
    said = lora->notes;
    if (tuning.lora->load) models::check_adapter(model, models::AdapterFolder(*tuning.lora->load));
    if (tuning.embedding_gradients) models::require_embedding_gradients(model);
  }
  if (!tuning.freeze.empty()) {
    const auto warnings = models::freeze_modules(model, tuning.freeze);
    said.insert(said.end(), warnings.begin(), warnings.end());
  }
  const bool trains = std::ranges::any_of(model.parameters(), [](const Tensor& p) { return p.requires_grad(); });
  if (!trains && !tuning.freeze.empty()) {
    config_error("{}: the frozen modules leave nothing of {} to train; freeze less",
                 tuning.freeze.front().mark().text(), model.type_name());
  }
  return said;
}

}  // namespace loom::train
