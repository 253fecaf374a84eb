// TcpJob: what a process must know to meet the other ranks of its job.
#pragma once

#include <string>

#include "engine/comm/tcp/address.h"

namespace loom::comm::tcp {

struct TcpJob {
  int rank = 0;
  int size = 1;
  Address store{};           // MASTER_ADDR and MASTER_PORT
  bool hosts_store = false;  // this process has the store; else a launcher's agent or rank 0 has it
  std::string id{};          // of the run and of its attempt: runs of other ids do not meet
  std::string interfaces{};  // as GLOO_SOCKET_IFNAME; empty: whatever reaches the store
  std::string secret{};      // greeting.h
  bool reads_memory = true;  // of ranks of one machine (peer_link.h), where the system allows it
  std::string version{};     // of the program: the same on all ranks
};

}  // namespace loom::comm::tcp
