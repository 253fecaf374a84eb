// Agreement between ranks: the same groups, parameters, shapes, dtypes and switches everywhere, or one error on every
// rank. Private to sharding.
//
// Cost     one 8-byte exchange per axis that the model is sharded or replicated over, at the first forward; texts are
//          exchanged only when the digests differ.
// Errors   ConfigError on every rank of the group that disagrees, naming the ranks and the first line in which they
//          differ.
#pragma once

#include <string>
#include <vector>

#include "sharding/fsdp_axes.h"

namespace loom::sharding {

class FsdpState;

// One line per group and parameter: the values that must be equal on all ranks.
std::vector<std::string> describe_for_agreement(const std::vector<FsdpState*>& states);

// Collective over every axis of more than one rank.
void check_agreement(const std::vector<std::string>& lines, const std::vector<comm::Axis>& axes);

}  // namespace loom::sharding
