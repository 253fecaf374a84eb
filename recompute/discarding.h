// discarding: the output of a cheap function is dropped as soon as it has been used, and computed again in backward
// (output-discarding checkpoint).
//
// Why          checkpoint() drops what is inside a module; its output stays, because who uses it saves it. For an
//              activation function or a norm the output is all there is to drop.
// Forward      function(args) runs and is recorded, and nothing inside it is kept; consumer(output) runs. What the
//              consumer saves of the output's bytes - the output, a view, a range of its rows - is not held, so the
//              bytes go when the last handle of forward goes.
// Backward     the first node that asks for such a tensor runs the function again, once per backward, to its end; the
//              output's bytes go again when the last of these nodes has run. The function's own backward uses what was
//              saved by that run.
// Kept         the function's arguments and the state of random numbers.
// Others       who uses the output outside the consumer saves it as usual and so keeps its bytes; values are right all
//              the same. A consumer whose output needs no gradient saves nothing, and nothing runs again.
// Nesting      the consumer may contain checkpoints (also with the output as their argument), and a checkpoint may
//              contain all of it.
// Errors       RecomputeError in backward: the second run differs from the first.
// Threads      the rank's host thread.
// Source       MindSpeed, activation-function and norm recompute. There a hook on the gradient of the consumer's output
//              computes it again, and a second consumer is refused.
#pragma once

#include <functional>
#include <string>

#include "recompute/checkpoint.h"

namespace loom::recompute {

// consumer(function(args)). `path` is for messages. With the grad mode off both are simply called.
nn::Value run_discarding(const std::string& path, const nn::Module::Run& function, nn::Args args,
                         const std::function<nn::Value(const Tensor& output)>& consumer);

}  // namespace loom::recompute
