#include "models/mixin/fsdp2_mixin.h"

#include "engine/core/error.h"
#include "engine/nn/init.h"
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

void recompute_modules(nn::Module& model, const std::vector<std::string>& paths, bool use_reentrant) {
  for (const std::string& path : paths) {
    recompute::checkpoint(*model.find(path), {.path = path, .use_reentrant = use_reentrant});
  }
}

// The modules that `patterns` mean; `where` stands for the file in messages.
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

void refuse_sharded(nn::Module& model, std::string_view what) {
  const auto sharded = sharding::FsdpState::collect(model);
  if (sharded.empty()) return;
  config_error(
      "freeze of {} after {} was sharded: the optimizer and the reduction of gradients may be made already; freeze in "
      "the model's freeze(config), or before fully_shard()",
      what, model.type_name());
}

void draw(nn::Module& model, std::uint64_t seed, const nn::KeptValues& kept) {
  if (auto* mixin = dynamic_cast<WeightInitMixin*>(&model)) return mixin->init_weights(seed, kept);
  nn::init_weights(model, seed, kept);
}

// What had no bytes, and has to be written.
class Unwritten {
 public:
  explicit Unwritten(nn::Module& model) {
    for (auto& [path, slot] : model.named_slots()) {
      if (!slot->value.storage()->allocated()) slots_.push_back({path, slot, 0});
    }
    for (auto& [path, module] : model.named_modules()) {
      for (auto& [name, buffer] : module->own_buffers()) {
        if (buffer.is_meta()) buffers_.push_back({nn::join_path(path, name), &buffer, 0});
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

void FSDP2Mixin::freeze(const ConfigReader&) {}

nn::Module& FSDP2Mixin::sharded_module() {
  if (adapted_ != nullptr) return *adapted_;
  auto* module = dynamic_cast<nn::Module*>(this);
  check_model(module != nullptr,
              "a class inherits FSDP2Mixin without nn::Module; write 'class M : public nn::Module, public FSDP2Mixin'");
  return *module;
}

nn::Module& sharded_module(nn::Module& model) {
  auto* mixin = dynamic_cast<FSDP2Mixin*>(&model);
  return mixin == nullptr ? model : mixin->sharded_module();
}

void FSDP2Mixin::adopt_resolved(const sharding::ResolvedFsdp2Config& plan) { adopted_ = plan; }

const FSDP2Mixin::Prepared& FSDP2Mixin::prepared() const {
  check_model(prepared_ != nullptr, "fsdp2_config() and fsdp2_kwargs() are asked for before fully_shard()");
  return *prepared_;
}

const sharding::Fsdp2Config& FSDP2Mixin::fsdp2_config() const { return prepared().config; }
const sharding::FullyShardOptions& FSDP2Mixin::fsdp2_kwargs() const { return prepared().kwargs; }
const sharding::ResolvedFsdp2Config& FSDP2Mixin::resolved_fsdp2_config() const {
  return adopted_ ? *adopted_ : prepared().plan;
}

bool FSDP2Mixin::fully_shard(comm::World& world, const std::filesystem::path& fsdp2_config_path,
                             const Fsdp2Options& options) {
  return fully_shard(world, sharding::load_fsdp2_config(fsdp2_config_path), options);
}

bool FSDP2Mixin::fully_shard(comm::World& world, const sharding::Fsdp2Config& fsdp2_config,
                             const Fsdp2Options& options) {
  _pre_fully_shard(world, fsdp2_config, options);
  _fully_shard(fsdp2_kwargs(), this->fsdp2_config());
  check_root_is_sharded(sharded_module());
  _post_fully_shard(options);
  return true;
}

void FSDP2Mixin::_pre_fully_shard(comm::World& world, const sharding::Fsdp2Config& fsdp2_config,
                                  const Fsdp2Options& options) {
  nn::Module& model = sharded_module();
  sharding::ResolvedFsdp2Config plan = sharding::resolve_fsdp2(model, fsdp2_config, world.size(), options.layout);
  sharding::FullyShardOptions kwargs = sharding::options_for(model, plan, world);
  prepared_ = std::make_shared<const Prepared>(Prepared{fsdp2_config, std::move(plan), std::move(kwargs)});
}

void FSDP2Mixin::_fully_shard(const sharding::FullyShardOptions&, const sharding::Fsdp2Config&) { _fully_shard(); }

void FSDP2Mixin::_fully_shard() {
  nn::Module& model = sharded_module();
  const sharding::ResolvedFsdp2Config& plan = resolved_fsdp2_config();
  // Recompute first: the hooks that gather and reduce then stand outside what is run again in backward.
  recompute_modules(model, plan.recomputed, plan.use_reentrant);
  sharding::shard_modules(model, plan.wrapped, fsdp2_kwargs());
  sharding::set_prefetch_lists(model, plan.wrapped, plan.num_to_forward_prefetch, plan.num_to_backward_prefetch);
}

void FSDP2Mixin::_post_fully_shard(const Fsdp2Options& options) { init_on_device(sharded_module(), options.weights); }

std::optional<sharding::ResolvedFsdp2Config> fully_shard(nn::Module& model, comm::World& world,
                                                         const sharding::Fsdp2Config& fsdp2_config,
                                                         const Fsdp2Options& options) {
  Adapted adapted(model);
  auto* mixin = dynamic_cast<FSDP2Mixin*>(&model);
  if (mixin == nullptr) mixin = &adapted;
  if (!mixin->fully_shard(world, fsdp2_config, options)) return std::nullopt;
  return mixin->resolved_fsdp2_config();
}

void freeze(nn::Module& model, const ConfigReader& config) {
  refuse_sharded(model, model.type_name());
  if (auto* mixin = dynamic_cast<FSDP2Mixin*>(&model)) mixin->freeze(config);
}

void freeze_modules(nn::Module& model, const std::vector<std::string>& patterns) {
  for (const std::string& path : paths_of(model, patterns, "freeze_modules")) {
    refuse_sharded(model, fmt::format("'{}'", path));
    for (const Tensor& parameter : model.find(path)->parameters()) parameter.set_requires_grad(false);
  }
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
  auto* outer_mixin = dynamic_cast<FSDP2Mixin*>(&model);
  if (source.load) {
    source.load(inner);
  } else if (outer_mixin == nullptr || !outer_mixin->load_pretrained()) {
    draw(inner, source.seed, kept);
  }
  if (auto* mixin = dynamic_cast<FSDP2Mixin*>(&inner)) mixin->post_meta_init();
  unwritten.check();
}

void set_recompute_modules_to_wrap(nn::Module& model, const std::vector<std::string>& patterns, bool use_reentrant) {
  recompute_modules(model, paths_of(model, patterns, "set_recompute_modules_to_wrap"), use_reentrant);
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
