// How an agent and the coordinator come together: the greeting, then the agent's Join.
//
// Errors   CommError: no connection, a peer that is no launcher of Shardloom or has another secret, a deadline.
#pragma once

#include "engine/comm/tcp/socket.h"
#include "engine/launcher/message.h"

namespace loom::launcher {

// The agent's side. Blocks until the deadline.
void introduce(const comm::tcp::Socket& socket, const Join& join, comm::tcp::Deadline deadline);
// The coordinator's side. Blocks until the deadline.
Join meet(const comm::tcp::Socket& socket, comm::tcp::Deadline deadline);

}  // namespace loom::launcher
