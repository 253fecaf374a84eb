// checkpoint: a module whose activations are not kept for backward but computed again there.
//
// Kept         between forward and backward: the tensors the module was called with and the state of random numbers.
// Nothing else. Enclosing    the module's hooks registered before the call are recomputed with it, those registered
// later stand outside: recompute first and
//              shard then (the usual order) leaves gathers out of the recomputed region; the other order runs the
//              sharding hooks again, which gather and record nothing twice. Paths do not change. Checkpoints nest.
// Reentrant    forward runs without a graph; one node runs it again in backward, with a graph, and goes backward
// through that. Needs a tensor
//              argument that requires grad (tensors in lists and dicts count), or the module's parameters would get no
//              gradient.
// Otherwise    (not reentrant) the graph is recorded in forward with nothing in it; the first node of backward that
// asks for a tensor runs
//              forward again, once per backward, up to the last tensor that is needed.
// Random       forward draws the same numbers again (RngState).
// Errors       ConfigError: the module has no forward or is checkpointed already; reentrant, at the first forward with
// grad mode on: no argument
//              requires grad and a parameter does. RecomputeError in backward: the second forward differs from the
//              first.
// Threads      the rank's host thread.
// Source       torch.utils.checkpoint, both values of use_reentrant.
#pragma once

#include <string>

#include "engine/core/error.h"
#include "engine/nn/module.h"

namespace loom::recompute {

// The module did not do the same when it ran again.
class RecomputeError : public Error {
 public:
  using Error::Error;
};

struct CheckpointOptions {
  std::string path;           // the module's, for messages
  bool use_reentrant = true;  // the default of fsdp2_config.yaml
  // Not reentrant: stop behind the last tensor that is needed. Off: forward runs to its end, and a forward that saves
  // more than the first one did is found too.
  bool early_stop = true;
};

// From now on calls of `module` are recomputed in backward.
void checkpoint(nn::Module& module, const CheckpointOptions& options);
bool is_checkpointed(const nn::Module& module);

}  // namespace loom::recompute
