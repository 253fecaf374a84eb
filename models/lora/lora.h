// Lora: adapters in a model, before it is sharded.
//
// Order    add_lora() on the model whose paths checkpoints have (models::sharded_module), while its parameters are on
//          the meta device; then fully_shard(), which shards adapters and frozen weights alike and reduces the
//          adapters' gradients alone; then init_on_device() (models/mixin), which calls fill_adapters().
// Frozen   every parameter but the adapters and the modules of modules_to_save.
// Dtypes   adapters are fp32; with param_dtype they are gathered in that type, as all parameters of their group.
// Values   by seed, path and global index: independent of ranks.
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

// The changes of add_lora() to a model.
struct Lora {
  LoraOptions options;
  std::vector<std::string> adapted;  // paths of modules with an adapter, in order of registration
  std::vector<std::string> saved;    // of modules_to_save
  std::vector<std::string> notes;    // how names were interpreted, one line each
  bool has_conv1d = false;           // peft's fan_in_fan_out
  bool scores = false;               // of a reward model: peft's task type is SEQ_CLS then

  // Whether a parameter belongs to an adapter; for is_tuned(), also to a module of modules_to_save: the saved ones.
  bool is_adapter(std::string_view path) const;
  bool is_tuned(std::string_view path) const;
};

// The head of a reward model is one of modules_to_save.
// Throws, before anything is changed: a target that matches nothing, or a module that is not linear; a module to save
// that is tied to another one; a model that is sharded or has adapters.
std::shared_ptr<const Lora> add_lora(nn::Module& model, LoraOptions options);

// Null for a model without adapters.
std::shared_ptr<const Lora> lora_of(const nn::Module& model);

// Initial values of the adapters: random, or read from options.load with the modules_to_save. Values in `kept` stay.
// Does nothing for a model without adapters. Precondition: they have bytes.
void fill_adapters(nn::Module& model, std::uint64_t seed, const nn::KeptValues& kept = {});

// From now on the outputs of frozen embeddings require a gradient, which reentrant recompute of the layers behind them
// needs (MindSpeed's --lora-register-forward-hook). Before sharding.
void require_embedding_gradients(nn::Module& model);

// "LoRA of rank 8, scale 2 (alpha 16) on 14 modules: 12288 of 494032768 parameters are trained".
std::string describe_lora(const nn::Module& model);

}  // namespace loom::models
