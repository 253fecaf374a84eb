// Context parallelism: the ranks that share sequences, and the modules that work on part of one.
//
// Mesh      W ranks are rest x ring x ulysses x tp, tp fastest. The ranks of one sequence have neighbouring numbers and
//           read the same samples, each its own tokens of them (engine/dist/context_layout.h). FSDP shards over all
//           ranks as it does without: gradients are averaged over W.
// Modules   say with a dist::ContextSlot that they can; the root says it of the whole model, whose input is a row of
//           tokens and whose loss is of these.
// Errors    ConfigError for a model that cannot, and for heads that ranks of Ulysses cannot share.
// Source    MindSpeed-MM: ulysses_parallel_size, ring_attention_size.
#pragma once

#include <memory>

#include "engine/comm/mesh.h"
#include "engine/dist/context_attention.h"
#include "engine/nn/module.h"
#include "sharding/config/fsdp2_config.h"

namespace loom::sharding {

struct SharedSequences;

// Null where no ranks share one. Collective.
std::shared_ptr<const dist::Context> shared_context(comm::World& world, const SharedSequences& sequences,
                                                    int tensor_size);

void check_shares_sequences(nn::Module& model, const Fsdp2Config& config);

// From now on the model computes on this rank's tokens. Before the first forward.
void share_sequences(nn::Module& model, const std::shared_ptr<const dist::Context>& context);

}  // namespace loom::sharding
