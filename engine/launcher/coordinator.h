// Coordinator: the thread where all agents of a job meet, and the store where its workers meet, at one port.
//
// Port       a connection that begins with "LOOM" is an agent; every other one goes to the store (comm/tcp/store.h), so
//            that PyTorch's workers find it at MASTER_ADDR:MASTER_PORT too. A silent one is closed after
//            Times::greeting, and at most 1024 are open that have not said what they are.
// Store      is empty at each start of the workers.
// Lost       an agent whose connection ends, or which gives no sign of life for Times::read.
// Threads    its own, one more for each agent that is being greeted, and the store's.
// Lifetime   where the job has ended or is about to, the destructor waits until all agents have gone, at most as long
//            as they need to stop their workers. Else it closes their connections at once.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "engine/comm/tcp/socket.h"
#include "engine/launcher/options.h"

namespace loom::launcher {

class Coordinator {
 public:
  // Gets what happens, on the coordinator's thread (Rendezvous::Note).
  using TakeNote = std::function<void(const std::string& text, bool routine)>;
  Coordinator(const Options& options, comm::tcp::Socket listening, TakeNote note);
  ~Coordinator();
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  std::uint16_t port() const;

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
};

}  // namespace loom::launcher
