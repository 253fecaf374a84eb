// A group of one rank: what it sends comes back to itself. Never blocks, never communicates. Null pointers (a dry run
// has no bytes) are accepted everywhere.
#pragma once

#include <memory>
#include <string>

#include "engine/comm/process_group.h"

namespace loom::comm {

// Of world rank `rank`.
std::shared_ptr<ProcessGroup> make_solo_group(int rank, std::string name);

}  // namespace loom::comm
