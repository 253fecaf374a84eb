// Agreement between ranks: the same groups, parameters, shapes, dtypes and switches everywhere, or one error on every
// rank. Private to sharding.
//
// Cost     one 8-byte exchange per shard group (and replicate group) at the first forward; texts are exchanged only
//          when the digests differ.
// Errors   ConfigError on every rank of the group that disagrees, naming the ranks and the first line in which they
//          differ.
#pragma once

#include <string>
#include <vector>

#include "engine/comm/mesh.h"

namespace loom::sharding {

class FsdpState;

// One line a group and one a parameter: what must be equal on all ranks.
std::vector<std::string> describe_for_agreement(const std::vector<FsdpState*>& states);

// Collective over the mesh's groups.
void check_agreement(const std::vector<std::string>& lines, const comm::DeviceMesh& mesh);

}  // namespace loom::sharding
