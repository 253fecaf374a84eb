// --train-epochs and --save-epochs: converted to steps, by the samples of the training data. Private to engine/cli.
//
// Epoch    the whole batches in one pass over the samples: samples / --global-batch-size, rounded down.
// Errors   ConfigError: no data to count, less than one batch of it, a program with data of its own.
#pragma once

#include "engine/cli/words/command.h"
#include "engine/job/job.h"
#include "engine/job/key.h"

namespace loom::cli {

// Fills in train_iters and save_epoch_iters. Runs after batch and data are settled.
void settle_epochs(const Command& app, job::Program program, job::Job& job);

}  // namespace loom::cli
