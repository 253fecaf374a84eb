// FSDP2Mixin: the requirements on a model that an fsdp2_config.yaml shards.
//
//   class MyModel : public nn::Module, public models::FSDP2Mixin { ... };
//   model->fully_shard(world, "fsdp2_config.yaml");
//
// Order      freeze(config), called by the code that builds the model; then fully_shard():
//            _pre_fully_shard   reads the file, checks it against the model, makes the mesh and the ignored parameters
//            _fully_shard       the override point; sharding::parallelize(): recompute, offload, shard, prefetch
//            _post_fully_shard  gives this rank's rows bytes, writes initial values (or loads them), post_meta_init()
// Override   _fully_shard with arguments or without; both are called with fsdp2_kwargs() and fsdp2_config() set, and
//            FSDP2Mixin::_fully_shard() follows the file. Write `override`: a _fully_shard with other parameters
//            hides these two and is never called (-Woverloaded-virtual warns of it). A custom strategy consists of
//            set_recompute_modules_to_wrap, set_offload_modules_to_wrap (activation_swap.h),
//            set_fullyshard_modules_to_wrap and set_modules_to_prefetch; if the command line requests swap, also of
//            swap_as_asked().
// Memory     parameters are on the meta device until _post_fully_shard: no rank ever holds a sharded one whole.
// Adapted    fully_shard(model, ...) below does the same for a model without the mixin.
// Errors     ConfigError on every rank alike, before anything is allocated: one that names the class if it inherits
//            the mixin twice or without public, so that no hook would be called; one that names a parameter or buffer
//            that is unwritten at the end.
// Threads    the rank's host thread; every call is collective.
// Source     MindSpeed-MM, models/transformers/base_model.py.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/comm/process_group.h"
#include "engine/nn/module.h"
#include "offload/swap_options.h"
#include "sharding/parallelize.h"

namespace loom::models {

class ConfigReader;

// The source of initial values.
struct WeightSource {
  std::uint64_t seed = 1;  // for init_weights()
  // Instead of init_weights(): writes the rows of every slot (load_weights of hf_folder.h, for example).
  std::function<void(nn::Module& model)> load = nullptr;
};

struct Fsdp2Options {
  sharding::GatherLayout layout = sharding::GatherLayout::kFast;
  WeightSource weights = {};
  offload::SwapOptions swap = {};  // beside activation_offload_modules of the file
  bool wait_in_backward = true;    // for offload_to_cpu (sharding/policy.h)
};

class FSDP2Mixin {
 public:
  virtual ~FSDP2Mixin() = default;

  // --- hooks, no-op by default ---
  // Switches off requires_grad by the model's configuration. Runs before sharding: call it through
  // models::freeze(), which refuses it afterwards.
  virtual void freeze(const ConfigReader& config);
  // Writes values that init_weights() cannot set (buffers that were on the meta device). Not called if there were none.
  virtual void post_meta_init() {}

  // Writes the model's own pretrained values, this rank's rows, if none come from outside. False: it has none.
  virtual bool load_pretrained() { return false; }

  // The config.json that --save writes for a model that starts from no folder. Empty: no config.json is written.
  virtual std::string config_json() const { return {}; }

  // Shards the model that has this mixin. True if it was done; a model that cannot may return false.
  virtual bool fully_shard(comm::World& world, const std::filesystem::path& fsdp2_config_path,
                           const Fsdp2Options& options = {});
  // The same with a file that has been read.
  virtual bool fully_shard(comm::World& world, const sharding::Fsdp2Config& fsdp2_config,
                           const Fsdp2Options& options = {});

  // The root of patterns and of names in checkpoints: this object, which must also be an nn::Module
  // (ConfigError), unless it represents another one.
  virtual nn::Module& sharded_module();

  // --- from _pre_fully_shard on; ConfigError before ---
  const sharding::Fsdp2Config& fsdp2_config() const;
  // Arguments of every sharding::fully_shard() call: mesh, dtypes, reshard_after_forward, ignored parameters, offload.
  const sharding::FullyShardOptions& fsdp2_kwargs() const;
  // The file resolved against the model and the world.
  const sharding::ResolvedFsdp2Config& resolved_fsdp2_config() const;

 protected:
  FSDP2Mixin() = default;
  // For a model that is not this object.
  explicit FSDP2Mixin(nn::Module& adapted) : adapted_(&adapted) {}

  virtual void _pre_fully_shard(comm::World& world, const sharding::Fsdp2Config& fsdp2_config,
                                const Fsdp2Options& options);
  virtual void _fully_shard(const sharding::FullyShardOptions& fsdp2_kwargs, const sharding::Fsdp2Config& fsdp2_config);
  virtual void _fully_shard();
  virtual void _post_fully_shard(const Fsdp2Options& options);
  // Swaps as the command line (Fsdp2Options::swap) and the file request: after recompute, before sharding.
  void swap_as_asked();
  // Adopts the result of another model's fully_shard, to which this one's was delegated.
  void adopt_resolved(const sharding::ResolvedFsdp2Config& resolved);

 private:
  struct Prepared {
    sharding::Fsdp2Config config;
    sharding::ResolvedFsdp2Config resolved;
    sharding::FullyShardOptions kwargs;
    offload::SwapOptions swap;
  };
  const Prepared& prepared() const;

  nn::Module* const adapted_ = nullptr;
  std::shared_ptr<const Prepared> prepared_;
  bool swapped_ = false;
  std::optional<sharding::ResolvedFsdp2Config> adopted_;
};

// mixin.sharded_module() of a model, or the model itself.
nn::Module& sharded_module(nn::Module& model);

// Shards through the model's own mixin, or, for a model without one, by the same steps.
// Returns the resolved file, or none if the model's fully_shard returned false.
std::optional<sharding::ResolvedFsdp2Config> fully_shard(nn::Module& model, comm::World& world,
                                                         const sharding::Fsdp2Config& fsdp2_config,
                                                         const Fsdp2Options& options = {});

// Calls the model's freeze(config); does nothing for a model without the mixin. ConfigError if the model is
// sharded: the reduction of its gradients is set up already.
void freeze(nn::Module& model, const ConfigReader& config);
// Switches requires_grad off below the modules that `patterns` select (as in the YAML, relative to `model`).
// ConfigError if the model is sharded.
void freeze_modules(nn::Module& model, const std::vector<std::string>& patterns);
// The same for parsed patterns, whose places messages name. Returns warnings, for one rank to print.
std::vector<std::string> freeze_modules(nn::Module& model, const std::vector<sharding::ModulePattern>& patterns);

// Bytes and initial values for a model that has been sharded, or will not be (its parameters are then whole):
// to_empty_if_needed; the source's loader, else load_pretrained(), else the model's WeightInitMixin, else the rules its
// parameters were registered with; adapters (models/lora); post_meta_init. Random values never replace existing
// ones; nothing is done if nothing was on the meta device.
//
// Throws   ConfigError naming an unwritten parameter or buffer. A write is anything that increments the version of
//          its storage: copy_from(), fill(), or raw bytes and bump_version().
void init_on_device(nn::Module& model, const WeightSource& source);

// Gives bytes to everything on the meta device under `model`: this rank's rows, or the whole if nothing shards it.
// Values are undefined. True if there was something.
bool to_empty_if_needed(nn::Module& model);

// Makes the part that `choice` selects recompute in backward: sharding::RecomputeStep. Before `model` is sharded.
void recompute_module(nn::Module& model, const sharding::RecomputedModule& choice);

// --- the parts of a strategy; patterns as in the YAML, relative to `model` ---

// Modules recomputed in backward. Before they are sharded, so that each is gathered once for both; ConfigError for
// one that is sharded.
void set_recompute_modules_to_wrap(nn::Module& model, const std::vector<std::string>& patterns,
                                   bool use_reentrant = true,
                                   sharding::RecomputeKeep keep = sharding::RecomputeKeep::kNone);
// Each module becomes a group of its own, bottom-up, and the root last.
void set_fullyshard_modules_to_wrap(nn::Module& model, const std::vector<std::string>& patterns,
                                    const sharding::FullyShardOptions& fsdp2_kwargs);
// The next n of the modules, in order of registration, are gathered ahead; 0: the implicit order. After sharding.
void set_modules_to_prefetch(nn::Module& model, const std::vector<std::string>& patterns, int num_to_forward_prefetch,
                             int num_to_backward_prefetch);

}  // namespace loom::models
