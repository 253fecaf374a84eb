// The store where processes of a job meet: keys and values, as torch.distributed's TCPStore has them on the wire.
//
// Server   answers what a client of TCPStore says: validate, ping, set, get, compare and set, add, check, wait, number
//          of keys, delete, append, several gets and sets. So the store of a real torchrun serves Shardloom's ranks,
//          and this one serves PyTorch's.
// Bounds   a key has up to 4 KiB, a value up to 1 MiB, the store up to 64 MiB and 4096 connections; a client that goes
//          beyond, speaks something else, or stops in the middle of a request for 10 s is disconnected. Nobody
//          waits for a slow client.
// Errors   CommError from the client: the store is gone, or a wait's deadline is over.
// Threads  the server has a thread of its own; a client belongs to one thread.
// Source   torch/csrc/distributed/c10d/TCPStore (versions 2.1 to 2.9).
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/comm/tcp/socket.h"

namespace loom::comm::tcp {

class StoreServer {
 public:
  // Accepts connections of `listening` itself; null: only those that are given to adopt().
  explicit StoreServer(Socket listening);
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  // A connection whose first bytes are still to be read. Any thread.
  void adopt(Socket connection);
  // Connections that are open, and those that ever were. Any thread.
  struct Connections {
    int open = 0;
    int ever = 0;
  };
  Connections connections() const;

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
};

class StoreClient {
 public:
  // Tried again until the deadline: the server may start later.
  StoreClient(const Address& server, Deadline deadline);
  ~StoreClient();

  // The numeric address of this end of the connection: one that the server's machine reaches.
  std::string local_host() const;

  void set(std::string_view key, std::string_view value);
  // The new value of the number at `key`, 0 at first.
  std::int64_t add(std::string_view key, std::int64_t by);
  // False where `keys` are not all there at the deadline.
  bool wait(const std::vector<std::string>& keys, Deadline deadline);
  // Whether the key is there.
  bool check(std::string_view key);
  // The key must be there.
  std::string get(std::string_view key);

 private:
  const Address server_;
  Socket socket_;
};

}  // namespace loom::comm::tcp
