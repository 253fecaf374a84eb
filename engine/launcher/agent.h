// The agent: joins the job, starts the workers of this host, and ends with the job. One of the agents has the
// coordinator too (options.h).
//
// Signals  SIGTERM, SIGINT and the others of stop_signals.h are passed to the workers once, which have Times::stop to
//          end; the job ends for all nodes then. A second one ends the agent at once, and its workers with it.
// Lost     an agent that no longer reaches the coordinator stops its workers and fails.
// Errors   ConfigError: the port is in use, or the coordinator refuses this agent. Error: a worker failed and no
//          restart is left (failure_report.h), nodes are missing, the coordinator is lost. Interrupted: a signal, here
//          or at another node.
// Threads  call it from a thread that lives as long as the process (worker.h); it starts others.
#pragma once

#include <functional>

#include "engine/launcher/options.h"

namespace loom::launcher {

// Returns when all workers of all nodes have ended with 0. Calls `ready` when this agent's part is set up, before it
// waits for others.
void run_agent(const Options& options, const std::function<void()>& ready = {});

}  // namespace loom::launcher
