// LoraBlock: the key `lora` of fsdp2_config.yaml: MindSpeed-MM's block training.lora. models/lora applies it
// to a model; here it is read and checked in isolation.
//
// Errors   ConfigError "file:line:column: lora.rank is VALUE; use ...". Unknown keys, and values that are not built,
//          are errors.
#pragma once

#include <string>
#include <vector>

#include "engine/config/value.h"

namespace loom::sharding {

struct LoraBlock {
  bool enable = false;
  int rank = 8;
  double alpha = 16;
  std::vector<std::string> target_modules = {"q_proj", "k_proj", "v_proj"};
  double dropout = 0;
  std::string init_lora_weights = "true";  // true, false or gaussian
  std::string pretrained_lora_path;        // peft's folder; empty: none
  config::SourceMark mark;                 // of the key
};

LoraBlock read_lora_block(const config::Value& value);

// The form in a file, on one line: "{enable: true, rank: 8, ...}". Blocks with the same text are equal.
std::string write_lora_block(const LoraBlock& block);

}  // namespace loom::sharding
