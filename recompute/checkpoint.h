// checkpoint: a module whose activations are recomputed in backward instead of kept.
//
// Kept         between forward and backward: the tensor arguments of the module and the state of random numbers;
//              nothing else, unless Keep selects results of operators (selective recompute).
// Enclosing    the module's hooks registered before the call are recomputed with it, later ones remain
//              outside: recompute first and shard then (the usual order) leaves gathers out of the recomputed region;
//              the other order runs the sharding hooks again, which gather and record nothing twice. Paths do not
//              change. Checkpoints nest.
// Reentrant    forward runs without a graph; one node runs it again in backward, with a graph, and runs backward
//              through that. Needs a tensor argument that requires grad (tensors in lists and dicts count), or the
//              module's parameters would get no gradient.
// Otherwise    (not reentrant) the graph is recorded in forward without saved tensors; the first node of backward that
//              needs a tensor runs forward again, once per backward, up to the last tensor that is needed.
// Random       forward draws the same numbers again (RngState).
// Errors       ConfigError: the module has no forward or is checkpointed already; reentrant, at the first forward with
//              grad mode on: no argument requires grad and a parameter does; a reentrant one that should keep results.
//              RecomputeError in backward: the second forward differs from the first, or a second backward needs
//              results that were freed with the first.
// Threads      the rank's host thread.
// Source       torch.utils.checkpoint, both values of use_reentrant; its create_selective_checkpoint_contexts.
#pragma once

#include <cstdint>
#include <string>

#include "engine/core/error.h"
#include "engine/nn/module.h"

namespace loom::recompute {

// The module behaved differently when it ran again.
class RecomputeError : public Error {
 public:
  using Error::Error;
};

// The results kept of a call besides its arguments. An operator whose result is kept is not recomputed; its inputs and
// everything in between are. Values and gradients have the same bits in all cases.
enum class Keep : std::uint8_t {
  kNothing,
  // The results of fused attention (output and log-sum-exp) and of every second matrix product against a weight,
  // starting with the first: in a Llama block q, v, gate and down; in a GPT-2 block c_attn and c_fc. Attention composed
  // of products and softmax is recomputed. This is torchtitan's "selective op" through PyTorch's
  // create_selective_checkpoint_contexts: kept results are held until the module's last gradient is done, also a
  // result that no recompute reaches (down of a Llama block, with early_stop).
  kSelectedOps,
  // The same without the results that no recompute reaches: the effect of torch.compile.
  kSelectedOpsNeeded,
  // The results of fused attention alone (MindSpeed-MM's skip_flash_attn_recompute).
  kAttention,
};

struct CheckpointOptions {
  std::string path;           // the module's, for messages
  bool use_reentrant = true;  // the default of fsdp2_config.yaml
  // Not reentrant: stop behind the last tensor that is needed. Off: forward runs to its end, and a forward that saves
  // more than the first one did is detected too.
  bool early_stop = true;
  Keep keep = Keep::kNothing;  // anything else: not reentrant
};

// From now on, calls of `module` are recomputed in backward.
void checkpoint(nn::Module& module, const CheckpointOptions& options);
bool is_checkpointed(const nn::Module& module);

// One call of `run` that is recomputed in backward, for code that is not a module: several modules in sequence, or part
// of one. `owner` is the module that `run` belongs to, for messages.
nn::Value checkpointed(const nn::Module& owner, const CheckpointOptions& options, const nn::Module::Run& run,
                       nn::Args args);

}  // namespace loom::recompute
