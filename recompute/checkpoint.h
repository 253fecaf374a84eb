// checkpoint: a module whose activations are not kept for backward but computed again there.
//
// Kept         between forward and backward: the tensors the module was called with and the state of random numbers;
//              nothing else, unless Keep asks for results of operators (selective recompute).
// Enclosing    the module's hooks registered before the call are recomputed with it, those registered later stand
//              outside: recompute first and shard then (the usual order) leaves gathers out of the recomputed region;
//              the other order runs the sharding hooks again, which gather and record nothing twice. Paths do not
//              change. Checkpoints nest.
// Reentrant    forward runs without a graph; one node runs it again in backward, with a graph, and goes backward
//              through that. Needs a tensor argument that requires grad (tensors in lists and dicts count), or the
//              module's parameters would get no gradient.
// Otherwise    (not reentrant) the graph is recorded in forward with nothing in it; the first node of backward that
//              asks for a tensor runs forward again, once per backward, up to the last tensor that is needed.
// Random       forward draws the same numbers again (RngState).
// Errors       ConfigError: the module has no forward or is checkpointed already; reentrant, at the first forward with
//              grad mode on: no argument requires grad and a parameter does; a reentrant one asked to keep results.
//              RecomputeError in backward: the second forward differs from the first, or a second backward wants
//              results that went with the first.
// Threads      the rank's host thread.
// Source       torch.utils.checkpoint, both values of use_reentrant; its create_selective_checkpoint_contexts.
#pragma once

#include <cstdint>
#include <string>

#include "engine/core/error.h"
#include "engine/nn/module.h"

namespace loom::recompute {

// The module did not do the same when it ran again.
class RecomputeError : public Error {
 public:
  using Error::Error;
};

// What is kept of a call besides its arguments. An operator whose result is kept is not computed again; its inputs and
// everything in between are. Values and gradients are the same bits in all cases.
enum class Keep : std::uint8_t {
  kNothing,
  // The results of fused attention (output and log-sum-exp) and of every second matrix product against a weight,
  // starting with the first: of a Llama block q, v, gate and down; of a GPT-2 block c_attn and c_fc. Attention composed
  // of products and softmax is computed again. This is torchtitan's "selective op" through PyTorch's
  // create_selective_checkpoint_contexts: what is kept is held until the module's last gradient is done, also the
  // result that no recompute gets to (down of a Llama block, with early_stop).
  kSelectedOps,
  // The same less the results that no recompute gets to: what torch.compile makes of it.
  kSelectedOpsNeeded,
  // The results of fused attention alone (MindSpeed-MM's skip_flash_attn_recompute).
  kAttention,
};

struct CheckpointOptions {
  std::string path;           // the module's, for messages
  bool use_reentrant = true;  // the default of fsdp2_config.yaml
  // Not reentrant: stop behind the last tensor that is needed. Off: forward runs to its end, and a forward that saves
  // more than the first one did is found too.
  bool early_stop = true;
  Keep keep = Keep::kNothing;  // anything else: not reentrant
};

// From now on calls of `module` are recomputed in backward.
void checkpoint(nn::Module& module, const CheckpointOptions& options);
bool is_checkpointed(const nn::Module& module);

// One call of `run` that is recomputed in backward, for what is no module: several of them one after another, or a part
// of one. `owner` is the module whose code `run` is, for messages.
nn::Value checkpointed(const nn::Module& owner, const CheckpointOptions& options, const nn::Module::Run& run,
                       nn::Args args);

}  // namespace loom::recompute
