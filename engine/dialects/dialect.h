// Dialect: the configuration format of a tool, told by the keys at the top of its file.
//
// Errors    ConfigError with file, line and column: keys of two dialects, formats that are not read, a file of none.
// Threads   safe from any number of threads.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/config/value.h"

namespace loom::dialects {

enum class Dialect : std::uint8_t {
  kFlat,          // fsdp2_config.yaml, and the names of flags beside its keys
  kNative,        // MindSpeed-MM: six sections
  kLlm,           // MindSpeed-LLM: train_fsdp2.py
  kGptArgs,       // MindSpeed-MM: gpt_args, Megatron's flags as keys
  kAccelerate,    // accelerate's YAML
  kTransformers,  // fsdp_config of transformers' TrainingArguments
  kDeepSpeed,     // DeepSpeed's JSON
  kTorchtitan,    // torchtitan's overrides; it has no files
};

inline constexpr std::array kDialects = {Dialect::kFlat,      Dialect::kNative,     Dialect::kLlm,
                                         Dialect::kGptArgs,   Dialect::kAccelerate, Dialect::kTransformers,
                                         Dialect::kDeepSpeed, Dialect::kTorchtitan};

// "native", as `config --to` has it.
std::string_view word_of(Dialect dialect);
// "MindSpeed-MM (six sections)".
std::string_view title_of(Dialect dialect);
std::optional<Dialect> dialect_of(std::string_view word);

bool is_fsdp2_key(std::string_view key);
// Whether a top-level key is a sign of another dialect than fsdp2_config.yaml. ConfigError for formats that are not
// read.
bool has_sign(const config::Value& file, bool is_json);
// Of a file's top-level mapping.
Dialect recognise(const config::Value& file, bool is_json);

}  // namespace loom::dialects
