// How the ranks of a job find each other: through the store, each shows where it listens; then every pair of ranks has
// a connection, and both its ends have proved that they belong to the job (greeting.h).
//
// Refused   by name: a rank that was started twice, of another version, or of a world of another size; a process with
//           another secret. A stranger's connection is closed after 10 s at most and disturbs nobody; once all
//           have joined, nobody listens any more.
// Memory    ranks of one machine that may read each other's memory (process_vm_readv) are noted: messages between them
//           need no socket.
// Errors    CommError before the deadline: it names the ranks that are missing, or that have not greeted.
//
// Private to engine/comm.
#pragma once

#include <memory>
#include <string>
#include <sys/types.h>
#include <vector>

#include "engine/comm/tcp/socket.h"
#include "engine/comm/tcp/store.h"
#include "engine/comm/tcp/tcp_job.h"

namespace loom::comm::tcp {

struct Joined {
  struct Peer {
    Socket socket{};             // null for this rank
    std::string address{};       // of the peer's end
    pid_t readable_process = 0;  // whose memory this process reads; 0: not readable
    bool reads_us = false;       // the peer reads this process's memory
  };
  std::vector<Peer> peers{};  // by rank
  std::vector<int> nodes{};   // for every rank the lowest rank of its machine
  // The store lives as long as the job needs it; the server is there if this process has it.
  std::unique_ptr<StoreServer> server{};
  std::unique_ptr<StoreClient> store{};
};

// Collective.
Joined join(const TcpJob& job, Deadline deadline);

}  // namespace loom::comm::tcp
