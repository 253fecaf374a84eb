// The values of model.json under their keys of config.json. Private to models/mm_model.
#pragma once

#include <string>
#include <string_view>

#include "models/mm_model/mm_model.h"

namespace loom::models {

// What several keys of the file say together; taken off in settle_values().
inline constexpr std::string_view kMmInnerSize = "told.intermediate_size";  // of Qwen2-VL's tower
inline constexpr std::string_view kMmQkvBias = "told.add_qkv_bias";         // of InternVL's text
inline constexpr std::string_view kMmQkNorm = "told.qk_layernorm";          // of InternVL's text

// A scalar with the path and the place of `of`.
config::Value scalar_of(const config::Value& of, std::string text,
                        config::Value::Style style = config::Value::Style::kPlain);

// Sets the value of a key of config.json. ConfigError if another key of the file gave another value.
void set_value(MmModel& model, std::string_view to, config::Value value);
// Null where no key gave it.
const config::Value* find_value(const MmModel& model, std::string_view to);

// After the last key: what follows from several.
void settle_values(MmModel& model);

// The values of fresh weights: those of the file, and the defaults that depend on others.
std::map<std::string, config::Value, std::less<>> complete_values(const MmModel& model);

}  // namespace loom::models
