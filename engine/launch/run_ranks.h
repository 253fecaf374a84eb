// Starting ranks: threads of this process, or the processes that a launcher started.
#pragma once

#include <functional>

#include "engine/comm/process_group.h"
#include "engine/core/rank_context.h"
#include "engine/launch/start.h"

namespace loom::comm::messages {
class Transport;
}

namespace loom::launch {

// A rank's main function. The context is current on its thread.
using RankMain = std::function<void(RankContext&, comm::World&)>;

// Runs `main` on `ranks` threads of this process and waits for all of them. A rank that throws fails its world, so that
// its peers' waits end; when all have ended, the first failure in time is rethrown (its own exception, not a peer's
// consequence). No rank waits for a rank that has returned: a peer that would is notified at once.
void run_ranks(int ranks, const comm::CommOptions& options, const RankMain& main);

// Runs `main` as this process's one rank and waits for the others' end (a wait with a deadline like any other). A
// failing rank notifies the others; every notified rank prints the failure on stderr and ends with exit code 1 (under
// MPI the launcher ends the job): this does not return then. An Interrupted (stop_signals.h) that `main` throws on
// every rank is not a failure: it is rethrown when all ranks have thrown it. Call once per process.
void run_rank_of(comm::messages::Transport& transport, const RankMain& main);
// As a rank of MPI_COMM_WORLD. Throws ConfigError in a build without MPI (mpi_absent.cpp).
void run_mpi_rank(const comm::CommOptions& options, const RankMain& main);
bool has_mpi();
// As a rank of the processes that meet at job.store.
void run_tcp_rank(const comm::tcp::TcpJob& job, const comm::CommOptions& options, const RankMain& main);
// msrun's scheduler: the store where the job's ranks meet, until all have come and gone. CommError if they have not
// come within the deadline of `options`.
void serve_store(const comm::tcp::TcpJob& job, const comm::CommOptions& options);

// Calls one of these, depending on how the process was started; `ranks` is for run_ranks().
void run(const Start& start, int ranks, const comm::CommOptions& options, const RankMain& main);

}  // namespace loom::launch
