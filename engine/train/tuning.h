// Tuning: the parameters of the model that a run trains: all, all except frozen modules, or adapters alone.
//
// Sources  the flags (--freeze, --lora-*) and the keys `freeze` and `lora` of fsdp2_config.yaml. Frozen modules of both
//          count; adapters are configured in one of the two.
// Order    ties undone (provide_model), adapters, frozen modules; then sharding.
// Errors   ConfigError with flag or file:line:column; the same on every rank.
// Threads  the rank's host thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/nn/module.h"
#include "engine/train/sections.h"
#include "models/lora/lora_options.h"
#include "sharding/config/fsdp2_config.h"

namespace loom::train {

struct Tuning {
  std::optional<models::LoraOptions> lora;
  std::vector<sharding::ModulePattern> freeze;
  bool embedding_gradients = false;  // reentrant recompute behind a frozen embedding (models::Lora)
};

// `config`: null without sharding.
Tuning tuning_of(const models::ModelOptions& model, const ParallelOptions& parallel,
                 const sharding::Fsdp2Config* config);

// Applies it. `model` is the root of the weights' names, on the meta device. Returns notes
// for one rank to print, a line each.
std::vector<std::string> apply_tuning(nn::Module& model, const Tuning& tuning);

}  // namespace loom::train
