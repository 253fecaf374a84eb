// discarding: the output of a cheap function is dropped after its use, and recomputed in backward
// (output-discarding checkpoint).
//
// Why          checkpoint() drops everything inside a module; its output stays, because its consumer saves it. For an
//              activation function or a norm, the output is the only tensor to drop.
// Forward      function(args) runs and is recorded, and nothing inside it is kept; consumer(output) runs. Tensors that
//              the consumer saves from the output's bytes (the output, a view, a range of its rows) are not held; the
//              bytes are freed with the last handle of forward.
// Backward     the first node that needs such a tensor runs the function again, once per backward, to its end; the
//              output's bytes are freed again when the last of these nodes has run. The function's own backward uses
//              the tensors saved by that run.
// Kept         the function's arguments and the state of random numbers.
// Others       a user of the output outside the consumer saves it as usual and so keeps its bytes; values are still
//              right. A consumer whose output needs no gradient saves nothing, and nothing runs again.
// Nesting      the consumer may contain checkpoints (also with the output as their argument), and a checkpoint may
//              contain all of it.
// Errors       RecomputeError in backward: the second run differs from the first.
// Threads      the rank's host thread.
// Source       MindSpeed, activation-function and norm recompute. There a hook on the gradient of the consumer's output
//              recomputes it, and a second consumer is refused.
#pragma once

#include <functional>
#include <string>

#include "recompute/checkpoint.h"

namespace loom::recompute {

// consumer(function(args)). `path` is for messages. With the grad mode off, both are simply called.
nn::Value run_discarding(const std::string& path, const nn::Module::Run& function, nn::Args args,
                         const std::function<nn::Value(const Tensor& output)>& consumer);

}  // namespace loom::recompute
