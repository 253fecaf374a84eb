// Copying between ranks' memory. Private to engine/comm.
#pragma once

#include <cstddef>

namespace loom::comm {

// memcpy; a piece too big for the caches bypasses them on the way out, which saves reading the destination first.
// Ranges do not overlap, except that from == to is allowed and does nothing.
void copy_between_ranks(void* to, const void* from, std::size_t bytes);

}  // namespace loom::comm
