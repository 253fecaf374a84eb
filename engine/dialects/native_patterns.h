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

}  // namespace loom::dialects
