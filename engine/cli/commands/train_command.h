// `shardloom train`. Private to engine/cli.
//
// Order    every error in the user's files is found first (TrainingInputs), on every rank, before
//          anything is allocated; then the ranks start.
// Errors   ConfigError for the user's input; DeviceError, CommError from a run.
// Threads  called once by the process's main thread; starts the ranks.
#pragma once

#include <ostream>

#include "engine/cli/words/arguments.h"

namespace loom::cli {

// Trains as configured; rank 0 writes progress and results to `out`, the model folder and metrics.jsonl. Under MPI this
// process is one rank.
void run_train(const job::Job& arguments, std::ostream& out);

}  // namespace loom::cli
