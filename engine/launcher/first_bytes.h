// Who has connected: an agent, or a process that looks for the store. The bytes stay in the connection.
#pragma once

#include <cstdint>

#include "engine/comm/tcp/socket.h"

namespace loom::launcher {

enum class Caller : std::uint8_t { kUnknown, kAgent, kStoreClient, kGone };

// Never blocks. kUnknown: too few bytes have come to tell.
Caller caller_of(const comm::tcp::Socket& socket);

}  // namespace loom::launcher
