#include "models/fsdp2_mixin.h"

#include "engine/core/error.h"
#include "engine/nn/init.h"
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

}  // namespace

void FSDP2Mixin::freeze(const ConfigReader&) {}

nn::Module& FSDP2Mixin::sharded_module() {
  if (adapted_ != nullptr) return *adapted_;
  auto* module = dynamic_cast<nn::Module*>(this);
  require(module != nullptr,
          "a class inherits FSDP2Mixin without nn::Module; write 'class M : public nn::Module, "
          "public FSDP2Mixin'");
  return *module;
}

const FSDP2Mixin::Prepared& FSDP2Mixin::prepared() const {
  require(prepared_ != nullptr, "fsdp2_config() and fsdp2_kwargs() are asked for before fully_shard()");
  return *prepared_;
}

const sharding::Fsdp2Config& FSDP2Mixin::fsdp2_config() const { return prepared().config; }
const sharding::FullyShardOptions& FSDP2Mixin::fsdp2_kwargs() const { return prepared().kwargs; }
const sharding::Fsdp2Plan& FSDP2Mixin::fsdp2_plan() const { return prepared().plan; }

bool FSDP2Mixin::fully_shard(comm::World& world, const std::filesystem::path& fsdp2_config_path,
                             const Fsdp2Options& options) {
  return fully_shard(world, sharding::load_fsdp2_config(fsdp2_config_path), options);
}

bool FSDP2Mixin::fully_shard(comm::World& world, const sharding::Fsdp2Config& fsdp2_config,
                             const Fsdp2Options& options) {
  _pre_fully_shard(world, fsdp2_config, options);
  _fully_shard(fsdp2_kwargs(), this->fsdp2_config());
  _post_fully_shard(options);
  return true;
}

void FSDP2Mixin::_pre_fully_shard(comm::World& world, const sharding::Fsdp2Config& fsdp2_config,
                                  const Fsdp2Options& options) {
  nn::Module& model = sharded_module();
  sharding::Fsdp2Plan plan = sharding::plan_fsdp2(model, fsdp2_config, world.size(), options.layout);
  sharding::FullyShardOptions kwargs = sharding::options_for(model, plan, world);
  prepared_ = std::make_shared<const Prepared>(Prepared{fsdp2_config, std::move(plan), std::move(kwargs)});
}

void FSDP2Mixin::_fully_shard(const sharding::FullyShardOptions&, const sharding::Fsdp2Config&) { _fully_shard(); }

void FSDP2Mixin::_fully_shard() {
  nn::Module& model = sharded_module();
  const sharding::Fsdp2Plan& plan = fsdp2_plan();
  // Recompute first: the hooks that gather and reduce then stand outside what is run again in backward.
  recompute_modules(model, plan.recomputed, plan.use_reentrant);
  sharding::shard_modules(model, plan.wrapped, fsdp2_kwargs());
  sharding::set_prefetch_lists(model, plan.wrapped, plan.num_to_forward_prefetch, plan.num_to_backward_prefetch);
}

void FSDP2Mixin::_post_fully_shard(const Fsdp2Options& options) { init_on_device(sharded_module(), options.weights); }

std::optional<sharding::Fsdp2Plan> fully_shard(nn::Module& model, comm::World& world,
                                               const sharding::Fsdp2Config& fsdp2_config, const Fsdp2Options& options) {
  Adapted adapted(model);
  auto* mixin = dynamic_cast<FSDP2Mixin*>(&model);
  if (mixin == nullptr) mixin = &adapted;
  if (!mixin->fully_shard(world, fsdp2_config, options)) return std::nullopt;
  return mixin->fsdp2_plan();
}

bool to_empty_if_needed(nn::Module& model) {
  bool found = false;
  for (auto& [path, slot] : model.named_slots()) found = found || !slot->value.storage()->allocated();
  if (found) sharding::materialize_shards(model);
  return found;
}

void init_on_device(nn::Module& model, const WeightSource& source) {
  if (!to_empty_if_needed(model)) return;
  if (source.load) {
    source.load(model);
  } else {
    nn::init_weights(model, source.seed);
  }
  if (auto* mixin = dynamic_cast<FSDP2Mixin*>(&model)) mixin->post_meta_init();
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
