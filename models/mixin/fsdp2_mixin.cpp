#include "models/mixin/fsdp2_mixin.h"

#include "engine/core/error.h"
#include "engine/nn/absent.h"
#include "engine/nn/init.h"
#include "models/decoder/layer_parts.h"
#include "models/lora/lora.h"
#include "models/mixin/activation_swap.h"
#include "models/mixin/find_mixin.h"
#include "models/mixin/new_parameters.h"
#include "models/mixin/weight_init_mixin.h"
#include "recompute/checkpoint.h"
#include "sharding/fully_shard.h"

namespace loom::models {
namespace {

// The route of a model without the mixin.
class Adapted final : public FSDP2Mixin {
 public:
  explicit Adapted(nn::Module& model) : FSDP2Mixin(model) {}
};

// The modules that `patterns` select; `where` replaces the file in messages.
std::vector<std::string> paths_of(nn::Module& model, const std::vector<std::string>& patterns, std::string_view where) {
  std::vector<sharding::ModulePattern> parsed;
  for (const std::string& pattern : patterns) {
    parsed.push_back(sharding::ModulePattern::parse(pattern, where, {std::string(model.type_name()), 0, 0}));
  }
  std::vector<std::string> warnings;
  return sharding::paths_of(model, parsed, warnings);
}

void check_root_is_sharded(nn::Module& model) {
  if (sharding::FsdpState::of(model) != nullptr) return;
  config_error(
      "_fully_shard of {} left the model itself unwrapped, and what no wrapped module owns unsharded; end it with "
      "set_fullyshard_modules_to_wrap(model, patterns, fsdp2_kwargs) or sharding::fully_shard(model, fsdp2_kwargs)",
      model.type_name());
}

// Swap requested on the command line must not be left out silently.
void check_is_swapped(nn::Module& model, const offload::SwapOptions& asked, bool swapped) {
  if (swapped || !asked.swaps()) return;
  config_error(
      "{} is given, and _fully_shard of {} swaps nothing; call swap_as_asked() there, after recompute and before "
      "sharding",
      asked.swap_attention ? "--swap-attention" : "--smart-swap", model.type_name());
}

bool is_recomputed(nn::Module& model, const sharding::RecomputedModule& choice) {
  if (choice.part != sharding::RecomputedPart::kWhole || choice.layers > 1) return has_layer_recompute(model, choice);
  return recompute::is_checkpointed(*model.find(choice.path));
}

// A model's own strategy may leave out a request of the command line.
void check_is_recomputed(nn::Module& model, const sharding::Fsdp2Config& config) {
  for (const sharding::RecomputedModule& choice : config.recompute_by_path) {
    if (nn::is_absent(*model.find(choice.path)) || is_recomputed(model, choice)) continue;
    config_error(
        "_fully_shard of {} left out the recompute of '{}' that flags ask for; call models::recompute_module() for "
        "each "
        "of resolved_fsdp2_config().recomputed in it, or remove the flags",
        model.type_name(), sharding::text_of(choice));
  }
}

void refuse_sharded(nn::Module& model, std::string_view what) {
  const auto sharded = sharding::FsdpState::collect(model);
  if (sharded.empty()) return;
  config_error(
      "freeze of {} after {} was sharded: the optimizer and the reduction of gradients may be made already; freeze in "
      "the model's freeze(config), or before fully_shard()",
      what, model.type_name());
}

void freeze_paths(nn::Module& model, const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    refuse_sharded(model, fmt::format("'{}'", path));
    for (const Tensor& parameter : model.find(path)->parameters()) parameter.set_requires_grad(false);
  }
}

// Recomputing a module with the gather in it would gather it once more in backward.
void refuse_recompute_of_sharded(nn::Module& model, const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    nn::Module& module = *model.find(path);
    if (sharding::FsdpState::of(module) == nullptr) continue;
    config_error(
        "set_recompute_modules_to_wrap: '{}' ({}) is sharded already; wrap for recompute first, then shard, so that "
        "one "
        "gather serves both",
        path, module.type_name());
  }
}

void draw(nn::Module& model, std::uint64_t seed, const nn::KeptValues& kept) {
  if (auto* mixin = find_mixin<WeightInitMixin>(model, "WeightInitMixin")) return mixin->init_weights(seed, kept);
  nn::init_weights(model, seed, kept);
}

// The parameters and buffers without bytes, which must be written.
class Unwritten {
 public:
  explicit Unwritten(nn::Module& model) {
    for (auto& [path, slot] : model.named_slots()) {
      if (!slot->value.storage()->allocated()) slots_.push_back({path, slot, 0});
    }
    for (auto& [path, module] : model.named_modules()) {
      for (auto& [name, buffer, persistent] : module->own_buffers()) {
        if (buffer.is_meta() && !persistent) buffers_.push_back({nn::join_path(path, name), &buffer, 0});
      }
    }
  }
  bool empty() const { return slots_.empty() && buffers_.empty(); }

  // Now they have bytes. Returns the parameters that had some before.
  nn::KeptValues begin(nn::Module& model) {
    nn::KeptValues kept;
    for (const Tensor& parameter : model.parameters()) kept.insert(parameter.id());
    for (Entry<nn::ParamSlot>& entry : slots_) {
      kept.erase(entry.holder->value.id());
      entry.version = entry.holder->value.storage()->version();
    }
    for (Entry<Tensor>& entry : buffers_) entry.version = entry.holder->storage()->version();
    return kept;
  }

  void check() const {
    for (const auto& [path, slot, version] : slots_) {
      if (slot->value.numel() == 0 || slot->value.storage()->version() != version) continue;
      config_error(
          "parameter '{}' was never written: it has memory and no values; draw it in _init_weights(), fill it in "
          "post_meta_init(), or load it",
          path);
    }
    for (const auto& [path, buffer, version] : buffers_) {
      if (buffer->numel() == 0 || buffer->storage()->version() != version) continue;
      config_error(
          "buffer '{}' was never written: it was on the meta device and has memory now, but no values; fill it in "
          "post_meta_init(), or register it with values",
          path);
    }
  }

 private:
  template <class T>
  struct Entry {
    std::string path;
    T* holder;
    std::uint64_t version;
  };
  std::vector<Entry<nn::ParamSlot>> slots_;
  std::vector<Entry<Tensor>> buffers_;
};

}  // namespace

void recompute_module(nn::Module& model, const sharding::RecomputedModule& choice) {
  if (choice.part != sharding::RecomputedPart::kWhole || choice.layers > 1) return apply_layer_recompute(model, choice);
  static_assert(static_cast<int>(sharding::RecomputeKeep::kSelectedOps) ==
                    static_cast<int>(recompute::Keep::kSelectedOps) &&
                static_cast<int>(sharding::RecomputeKeep::kSelectedOpsNeeded) ==
                    static_cast<int>(recompute::Keep::kSelectedOpsNeeded) &&
                static_cast<int>(sharding::RecomputeKeep::kAttention) == static_cast<int>(recompute::Keep::kAttention));
  recompute::checkpoint(
      *model.find(choice.path),
      {.path = choice.path, .use_reentrant = choice.use_reentrant, .keep = static_cast<recompute::Keep>(choice.keep)});
}

void FSDP2Mixin::freeze(const ConfigReader&) {}

nn::Module& FSDP2Mixin::sharded_module() {
  if (adapted_ != nullptr) return *adapted_;
  auto* module = dynamic_cast<nn::Module*>(this);
  if (module == nullptr) {
    config_error(
        "a class inherits FSDP2Mixin without nn::Module; write 'class M : public nn::Module, public FSDP2Mixin'");
  }
  return *module;
}

nn::Module& sharded_module(nn::Module& model) {
  auto* mixin = find_mixin<FSDP2Mixin>(model, "FSDP2Mixin");
  return mixin == nullptr ? model : mixin->sharded_module();
}

void FSDP2Mixin::adopt_resolved(const sharding::ResolvedFsdp2Config& resolved) { adopted_ = resolved; }

const FSDP2Mixin::Prepared& FSDP2Mixin::prepared() const {
  if (prepared_ == nullptr) {
    config_error(
        "fsdp2_config() and fsdp2_kwargs() are called before fully_shard(); call them in _fully_shard() or later");
  }
  return *prepared_;
}

const sharding::Fsdp2Config& FSDP2Mixin::fsdp2_config() const { return prepared().config; }
const sharding::FullyShardOptions& FSDP2Mixin::fsdp2_kwargs() const { return prepared().kwargs; }
const sharding::ResolvedFsdp2Config& FSDP2Mixin::resolved_fsdp2_config() const {
  return adopted_ ? *adopted_ : prepared().resolved;
}

bool FSDP2Mixin::fully_shard(comm::World& world, const std::filesystem::path& fsdp2_config_path,
                             const Fsdp2Options& options) {
  return fully_shard(world, sharding::load_fsdp2_config(fsdp2_config_path), options);
}

bool FSDP2Mixin::fully_shard(comm::World& world, const sharding::Fsdp2Config& fsdp2_config,
                             const Fsdp2Options& options) {
  _pre_fully_shard(world, fsdp2_config, options);
  _fully_shard(fsdp2_kwargs(), this->fsdp2_config());
  check_is_swapped(sharded_module(), prepared().swap, swapped_);
  check_root_is_sharded(sharded_module());
  check_is_recomputed(sharded_module(), this->fsdp2_config());
  _post_fully_shard(options);
  return true;
}

void FSDP2Mixin::_pre_fully_shard(comm::World& world, const sharding::Fsdp2Config& fsdp2_config,
                                  const Fsdp2Options& options) {
  nn::Module& model = sharded_module();
  sharding::ResolvedFsdp2Config resolved = sharding::resolve_fsdp2(model, fsdp2_config, world.size(), options.layout);
  if (auto& offload = resolved.options.cpu_offload) offload->wait_in_backward = options.wait_in_backward;
  sharding::FullyShardOptions kwargs = sharding::options_for(model, resolved, world);
  prepared_ =
      std::make_shared<const Prepared>(Prepared{fsdp2_config, std::move(resolved), std::move(kwargs), options.swap});
}

void FSDP2Mixin::_fully_shard(const sharding::FullyShardOptions&, const sharding::Fsdp2Config&) { _fully_shard(); }

void FSDP2Mixin::_fully_shard() {
  sharding::parallelize(sharded_module(), resolved_fsdp2_config(), fsdp2_kwargs(), recompute_module,
                        [this](nn::Module&, const std::vector<std::string>&, bool) { swap_as_asked(); });
}

void FSDP2Mixin::swap_as_asked() {
  const sharding::ResolvedFsdp2Config& resolved = resolved_fsdp2_config();
  swap_activations(sharded_module(),
                   {.offloaded = resolved.offloaded,
                    .pin_memory = resolved.pin_memory,
                    .wrapped = resolved.wrapped,
                    .by_path = resolved.swapped},
                   prepared().swap);
  swapped_ = true;
}

void FSDP2Mixin::_post_fully_shard(const Fsdp2Options& options) { init_on_device(sharded_module(), options.weights); }

std::optional<sharding::ResolvedFsdp2Config> fully_shard(nn::Module& model, comm::World& world,
                                                         const sharding::Fsdp2Config& fsdp2_config,
                                                         const Fsdp2Options& options) {
  Adapted adapted(model);
  auto* mixin = find_mixin<FSDP2Mixin>(model, "FSDP2Mixin");
  if (mixin == nullptr) mixin = &adapted;
  if (!mixin->fully_shard(world, fsdp2_config, options)) return std::nullopt;
  return mixin->resolved_fsdp2_config();
}

void freeze(nn::Module& model, const ConfigReader& config) {
  refuse_sharded(model, model.type_name());
  if (auto* mixin = find_mixin<FSDP2Mixin>(model, "FSDP2Mixin")) mixin->freeze(config);
}

void freeze_modules(nn::Module& model, const std::vector<std::string>& patterns) {
  freeze_paths(model, paths_of(model, patterns, "freeze_modules"));
}

std::vector<std::string> freeze_modules(nn::Module& model, const std::vector<sharding::ModulePattern>& patterns) {
  std::vector<std::string> warnings;
  freeze_paths(model, sharding::paths_of(model, patterns, warnings));
  return warnings;
}

bool to_empty_if_needed(nn::Module& model) {
  if (Unwritten(model).empty()) return false;
  sharding::materialize_shards(model);
  return true;
}

void init_on_device(nn::Module& model, const WeightSource& source) {
  Unwritten unwritten(model);
  if (!to_empty_if_needed(model)) return;
  const nn::KeptValues kept = unwritten.begin(model);
  nn::Module& inner = sharded_module(model);
  auto* outer_mixin = find_mixin<FSDP2Mixin>(model, "FSDP2Mixin");
  if (source.load) {
    if (auto* added = find_mixin<NewParameters>(inner, "NewParameters")) added->init_new_parameters(source.seed, kept);
    source.load(inner);
  } else if (outer_mixin == nullptr || !outer_mixin->load_pretrained()) {
    draw(inner, source.seed, kept);
  }
  fill_adapters(inner, source.seed, kept);
  if (auto* mixin = find_mixin<FSDP2Mixin>(inner, "FSDP2Mixin")) mixin->post_meta_init();
  unwritten.check();
}

void set_recompute_modules_to_wrap(nn::Module& model, const std::vector<std::string>& patterns, bool use_reentrant,
                                   sharding::RecomputeKeep keep) {
  const std::vector<std::string> paths = paths_of(model, patterns, "set_recompute_modules_to_wrap");
  refuse_recompute_of_sharded(model, paths);
  std::vector<sharding::RecomputedModule> choices;
  for (const std::string& path : paths) choices.push_back({.path = path, .use_reentrant = use_reentrant, .keep = keep});
  sharding::recompute_modules(model, choices, recompute_module);
}

void set_fullyshard_modules_to_wrap(nn::Module& model, const std::vector<std::string>& patterns,
                                    const sharding::FullyShardOptions& fsdp2_kwargs) {
  sharding::shard_modules(model, paths_of(model, patterns, "set_fullyshard_modules_to_wrap"), fsdp2_kwargs);
}

void set_modules_to_prefetch(nn::Module& model, const std::vector<std::string>& patterns, int num_to_forward_prefetch,
                             int num_to_backward_prefetch) {
  sharding::set_prefetch_lists(model, paths_of(model, patterns, "set_modules_to_prefetch"), num_to_forward_prefetch,
                               num_to_backward_prefetch);
}

}  // namespace loom::models
