// MindSpeed-MM's files beside the flags: model.json (--mm-model) and tools.json (--mm-tool). Private to engine/cli.
//
// Flags    a flag that says something else than a key of the same meaning is an error with both.
// Errors   ConfigError with the file and the key.
#pragma once

#include "engine/cli/words/command.h"
#include "engine/job/job.h"

namespace loom::cli {

// Reads --mm-model: fresh weights get job.model.made_config, and those of a folder (--init-from-hf-path, or the file's
// init_from_hf_path) are compared with it. Towers that are not trained, recompute, and a line of written.told for what
// has no effect. Nothing without the flag, or beside --model-config, which is refused later.
void settle_mm_model(const Command& app, job::Job& job);

// Reads --mm-tool: the profile that it switches on, as by the flags of --profile. Nothing without the flag.
void settle_mm_tool(const Command& app, job::Job& job);

}  // namespace loom::cli
