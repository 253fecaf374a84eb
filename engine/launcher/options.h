// Options: a job of torchrun or msrun, as one agent of it sees it. Filled in from the command line by engine/cli, and
// checked there.
//
// Agent        the launcher's process on a host. It starts and watches the workers of its host.
// Node         an agent and its workers; usually a host.
// Coordinator  a thread of one agent, where all agents meet.
// Units        milliseconds.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/comm/tcp/socket.h"

namespace loom::launcher {

using Milliseconds = std::chrono::milliseconds;

enum class Tool : std::uint8_t { kTorchrun, kMsrun };
const char* name_of(Tool tool);

// --nnodes: the fewest and the most nodes of the job.
struct NodeRange {
  int least = 1;
  int most = 1;
  bool operator==(const NodeRange&) const = default;
};

// --redirects and --tee: which streams of which worker.
enum class Streams : std::uint8_t { kNone = 0, kOut = 1, kErr = 2, kBoth = 3 };
struct StreamChoice {
  Streams otherwise = Streams::kNone;
  std::map<int, Streams> of_worker{};  // by local rank
  bool has_out(int local_rank) const;
  bool has_err(int local_rank) const;
  bool any() const;
};

// How long the launcher waits for what.
struct Times {
  Milliseconds join{600'000};      // for all nodes
  Milliseconds last_call{30'000};  // for more nodes than the fewest
  Milliseconds read{60'000};       // for a sign of life of an agent, or of the coordinator
  Milliseconds heartbeat{5'000};   // between two signs of life
  Milliseconds stop{30'000};       // from SIGTERM to SIGKILL
  Milliseconds greeting{10'000};   // for the first bytes of a connection, and for its greeting
  Milliseconds monitor{100};       // between two looks at the workers
};

// Which agent has the coordinator.
enum class Host : std::uint8_t {
  kThis,
  kOther,
  kFirst,  // the first agent of this host that listens at the address
};

struct Options {
  Tool tool = Tool::kTorchrun;
  std::string version{};  // of this program; all agents of a job have the same
  std::string run_id = "none";
  NodeRange nodes{};
  int workers = 1;     // of this node
  int node_rank = -1;  // -1: nodes are numbered in the order in which they join
  comm::tcp::Address meeting{.host = "127.0.0.1", .port = 29500};  // port 0: a free one
  Host coordinator = Host::kThis;
  std::string port_flag = "--master-port";  // the flag that names the port, for messages
  int max_restarts = 0;
  Times times{};
  std::string role = "default";
  std::string host{};  // that the agent announces; empty: the host's name

  std::optional<std::filesystem::path> log_dir{};  // none: a temporary folder
  StreamChoice redirects{}, tee{};                 // to files; to files and to the console
  std::vector<int> shown_workers{};                // on the console; torchrun: local ranks, msrun: ranks; empty: all
  std::string worker_log_name{};                   // msrun: of the files; empty: worker
  std::string bind_core{};                         // msrun: as it is written

  std::vector<std::string> program{};  // program.h; the first word is the path of an executable file
};

}  // namespace loom::launcher
