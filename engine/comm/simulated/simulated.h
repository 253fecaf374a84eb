// A world of any size with one rank in it: plans, and checks of a configuration at a size nobody has.
//
// Model    nothing moves and nobody is waited for. The peers are taken to be alike: what they would send is what this
//          rank sends. So all_gather repeats this rank's part, a sum over N ranks is N times this rank's values, an
//          average or a maximum is this rank's values. Null pointers (a dry run has no bytes) are accepted everywhere.
// Share    share() gives null: a gather that needs shared memory falls back to one of its own, as between nodes.
// Threads  as ProcessGroup; calls never block.
#pragma once

#include <memory>

#include "engine/comm/process_group.h"

namespace loom::comm {

// Precondition: 0 <= rank < size.
std::unique_ptr<World> make_simulated_world(int rank, int size);

}  // namespace loom::comm
