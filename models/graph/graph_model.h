// GraphModel: a recorded PyTorch model as a module tree on a dry device: patterns, sharding, recompute, offload and
// prefetch act on it as on a model that is built here; its forward and backward issue the recorded operators.
//
//   const auto model = make_graph_model(make_graph_program(GraphFile(file).at({{"B", 1}, {"S", 4096}})));
//   data::ForwardResult result = graph_forward_step(data, *model);
//
// States   parameters are on the meta device, as modules register them, in fp32 (kept in the recorded dtype where that
//          is none of the floating ones).
// Calls    the root takes the recorded inputs by name. A module below it is called by its parent's replay alone.
// Errors   ModelError on a device that is not dry; for a node whose outputs had no gradient in the recording.
// Threads  the rank's host thread; a model belongs to one rank.
#pragma once

#include <memory>

#include "engine/data/step.h"
#include "engine/nn/module.h"
#include "models/graph/graph_program.h"

namespace loom::models {

// The program may be shared by models of several ranks.
std::shared_ptr<nn::Module> make_graph_model(std::shared_ptr<const GraphProgram> program);

// The recorded inputs of one micro-batch, on the meta device: floating ones in fp32.
data::Batch graph_batch(const GraphProgram& program);

// Calls a model of make_graph_model() with its inputs and gives the recorded loss.
data::ForwardResult graph_forward_step(data::DataIterator& data, nn::Module& model);

}  // namespace loom::models
