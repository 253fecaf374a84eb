// exchange: the members of a group show each other what each has, as text.
//
// Cost     all_have_the_same() moves 8 bytes a member. The texts themselves move in exchange_lines(), for errors.
// Errors   CommError, bounded by the group's deadline.
// Threads  the rank's host thread (kHostLane).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/comm/process_group.h"

namespace loom::comm {

// Collective. Compares digests of 64 bits. `tag` names the exchange in errors.
bool all_have_the_same(ProcessGroup& group, const std::string& own, std::string_view tag);

// Collective. Every member's text cut into lines, in group order.
std::vector<std::vector<std::string>> exchange_lines(ProcessGroup& group, const std::string& own, std::string_view tag);

}  // namespace loom::comm
