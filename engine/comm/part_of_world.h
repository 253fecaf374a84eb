// Part of a world as a world: its ranks are [part * n, (part + 1) * n) of the whole one, numbered from 0. A mesh or a
// sharded model of a stage of a pipeline is made on it.
//
// Groups   World::split of the whole one: all parts make the same splits in the same order. A group's ranks() are the
//          whole world's, as messages and errors name them.
// Errors   ConfigError unless `parts` divides the ranks.
// Threads  as World's. The whole world outlives it.
#pragma once

#include <memory>

#include "engine/comm/process_group.h"

namespace loom::comm {

// The part of this rank.
std::unique_ptr<World> part_of_world(World& whole, int parts);

}  // namespace loom::comm
