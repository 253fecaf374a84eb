// Folders of another kind than a command needs: names the content, judged by file names, and the next step.
//
// Result   the rest of a message behind "PATH ": "holds LoRA adapters, ...; give ...". Empty for a folder that may be
//          of the kind, and for a folder of no known kind: its reader reports what is missing.
// Errors   none; a folder that cannot be read has no kind.
// Threads  any.
#pragma once

#include <filesystem>
#include <string>

namespace loom::io {

// Where a Hugging Face folder is wanted: adapters, checkpoints of a run or of Megatron's ranks, a name of the hub.
std::string why_no_model(const std::filesystem::path& path);

// Where a checkpoint of torch.distributed.checkpoint is wanted, or a folder of them: a Hugging Face folder, adapters,
// Megatron's ranks. `flags`: this command has flags for a model and adapters; without them a conversion is
// named.
enum class ModelFlags : bool { kNone, kOfTraining };
std::string why_no_checkpoint(const std::filesystem::path& path, ModelFlags flags);

}  // namespace loom::io
