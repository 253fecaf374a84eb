// The two dialects whose keys are the job's own: fsdp2_config.yaml with names of flags beside its keys, and gpt_args.
// Private to engine/dialects.
#pragma once

#include "engine/config/value.h"
#include "engine/dialects/translate.h"

namespace loom::dialects {

void translate_flat(const config::Value& file, Translation& to);
// Nested mappings are their leaves; lora_args stands behind gpt_args; false and null are not given.
void translate_gpt_args(const config::Value& file, Translation& to);

// How a flag is written as a key: "micro_batch_size".
std::string key_of(std::string_view flag);

}  // namespace loom::dialects
