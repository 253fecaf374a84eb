// Patterns of module paths as MindSpeed's two tools read them, as entries of fsdp2_config.yaml. Private to
// engine/dialects.
//
// Grammar   the whole path must match: * any characters, dots too; ? one; {*} a number; {a-b} a range, a <= b; several
//           groups. A comma between braces is an error.
// Ours      an entry has one group and no * or ? outside it: other patterns are replaced by the paths that they select
//           in the model.
#pragma once

#include "engine/dialects/reading.h"

namespace loom::dialects {

// The list at `key`, as entries of fsdp2_config.yaml. Refusals are gathered.
job::Texts read_patterns(Reading& reading, std::string_view key);

// The same into a key of fsdp2_config.yaml; nothing for an empty list.
void set_patterns(Reading& reading, std::string_view name, std::string_view key);

// expert_parallel_size, moe_modules and reshard_local_experts where `size`, the ranks that share experts, is above 1.
// `shards` says over how many ranks each set of experts is sharded: all that have it (W / size), or 1.
void derive_experts(Reading& reading, std::string_view size, std::string_view shards, std::string_view modules);

}  // namespace loom::dialects
