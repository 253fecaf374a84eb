// Starting ranks: threads of this process, or the processes an MPI launcher started.
#pragma once

#include <functional>

#include "engine/comm/process_group.h"
#include "engine/core/rank_context.h"
#include "engine/launch/start.h"

namespace loom::launch {

// A rank's main function. The context is current on its thread.
using RankMain = std::function<void(RankContext&, comm::World&)>;

// Runs `main` on `ranks` threads of this process and waits for all of them. A rank that throws fails its world, so that
// its peers' waits end; when all have ended, the first failure in time is rethrown (its own exception, not a peer's
// consequence). No rank waits for a rank that has returned: a peer that would is notified at once.
void run_ranks(int ranks, const comm::CommOptions& options, const RankMain& main);

// Runs `main` as this process's one rank of MPI_COMM_WORLD and waits for the others' end (a wait with a deadline like
// any other). A failing rank notifies the others on a second communicator; every notified rank prints the failure on
// stderr, and the job ends with a non-zero exit code: this does not return then. An Interrupted (stop_signals.h) that
// `main` throws on every rank is not a failure: it is rethrown when all ranks have thrown it. Call once per process.
// Throws ConfigError in a build without MPI (mpi_absent.cpp).
void run_mpi_rank(const comm::CommOptions& options, const RankMain& main);

// Calls one of the two, depending on how the process was started; `ranks` is for run_ranks().
void run(const Start& start, int ranks, const comm::CommOptions& options, const RankMain& main);

}  // namespace loom::launch
