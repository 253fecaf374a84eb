// Tuning: which parameters of the model a run trains: all, all but frozen modules, or adapters alone.
//
// Sources  the flags (--freeze, --lora-*) and the keys `freeze` and `lora` of fsdp2_config.yaml. Frozen modules of both
//          count; adapters are asked for in one of the two.
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

// Makes it so. `model` is what the names of weights are relative to, on the meta device. Returns what there is to say
// of it, a line each, for one rank.
std::vector<std::string> apply_tuning(nn::Module& model, const Tuning& tuning);

}  // namespace loom::train
