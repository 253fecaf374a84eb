// Lora: adapters in a model, before it is sharded.
//
// Order    add_lora() on the model whose paths checkpoints have (models::sharded_module), while its parameters are on
//          the meta device; then fully_shard(), which shards adapters and frozen weights alike and reduces the
//          adapters' gradients alone; then init_on_device() (models/mixin), which calls fill_adapters().
// Frozen   every parameter but the adapters and the modules of modules_to_save.
// Dtypes   adapters are fp32; with param_dtype they are gathered in that type, as all parameters of their group.
// Values   by seed, path and global index: they do not depend on ranks.
// Errors   ConfigError that begins with LoraOptions::where.
// Threads  the rank's host thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/nn/init.h"
#include "engine/nn/module.h"
#include "models/lora/lora_options.h"

namespace loom::models {

// What add_lora() made of a model.
struct Lora {
  LoraOptions options;
  std::vector<std::string> adapted;  // paths of modules with an adapter, in order of registration
  std::vector<std::string> saved;    // of modules_to_save
  std::vector<std::string> notes;    // how names were read, one line each
  bool has_conv1d = false;           // peft's fan_in_fan_out

  // Whether a parameter belongs to an adapter; or, is_tuned(), to a module of modules_to_save as well: what is saved.
  bool is_adapter(std::string_view path) const;
  bool is_tuned(std::string_view path) const;
};

// Throws, before anything is changed: a target that matches nothing, or a module that is not linear; a module to save
// that is tied to another one; a model that is sharded or has adapters.
std::shared_ptr<const Lora> add_lora(nn::Module& model, LoraOptions options);

// Null for a model without adapters.
std::shared_ptr<const Lora> lora_of(const nn::Module& model);

// First values of the adapters: drawn, or read from options.load with those of modules_to_save. Those in `kept` stay.
// Nothing for a model without adapters. Precondition: they have bytes.
void fill_adapters(nn::Module& model, std::uint64_t seed, const nn::KeptValues& kept = {});

// The outputs of frozen embeddings require a gradient from now on: what reentrant recompute of the layers behind them
// needs (MindSpeed's --lora-register-forward-hook). Before sharding.
void require_embedding_gradients(nn::Module& model);

// "LoRA of rank 8, scale 2 (alpha 16) on 14 modules: 12288 of 494032768 parameters are trained".
std::string describe_lora(const nn::Module& model);

}  // namespace loom::models
