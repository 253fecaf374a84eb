// pretrain: a training program from three callbacks, as in Megatron and MindSpeed-MM.
//
//   int main(int argc, char** argv) {
//     return loom::cli::pretrain(argc, argv, {train_valid_test_datasets_provider, model_provider, forward_step});
//   }
//
// Yours     the data, the model, and one forward: get_batch and loss_func.
// The loop  flags and their checks, ranks, sharding, initial values or weights from --init-from-hf-path, backward,
//           gradient clipping, AdamW, the learning-rate schedule, evaluation, metrics, saving.
// Order     datasets provider and model provider run once on the main thread, where every error in the user's
//           files is found before anything is allocated; then the ranks start, and the model provider runs
//           once on every rank. Per step and micro-batch: forward_step, loss_func, backward.
// Sharding  a model that is a models::FSDP2Mixin is sharded by its own fully_shard; any other by the file of
//           --fsdp2-config-path, unchanged.
// Threads   ranks are threads of this process unless an MPI launcher started it: the callbacks run on several threads
//           at once. They may read what they share and must not write it.
// Outputs   every output is prepared before the first step (outputs.h); one that is lost later (a full disk for
//           metrics, weights that are not finite) is reported at the end, with exit status 1.
// Signals   launch::kStopSignals: all ranks stop after the same step, the model of that step is saved if --save is
//           given, exit status 128 + signal; a second one ends the process at once (engine/launch/stop_signals.h).
// Errors    an exception of a callback ends the job: ConfigError with exit status 2, anything else with 1.
// Source    Megatron-LM, megatron/training/training.py.
#pragma once

#include <ostream>

#include "engine/cli/words/arguments.h"
#include "engine/train/callbacks.h"

namespace loom::cli {

// The main of a program: parses the flags, trains, and returns the exit status: 0 done, 1 a run failed or lost an
// output, 2 the command line or a file of the user's is wrong, 130 and 143 stopped by a signal. Errors go to stderr in
// one line that begins with the program's name. With `plan` as the first word, the same callbacks are planned instead
// of run, with the flags of `shardloom plan` (--world-size, --device, --json, ...); 3: the step does not fit.
int pretrain(int argc, const char* const* argv, const train::PretrainCallbacks& callbacks);

// The same behind a parsed command line; rank 0 reports to `out`. Throws instead: launch::Interrupted after a signal.
void pretrain(const job::Job& arguments, const train::PretrainCallbacks& callbacks, std::ostream& out);

}  // namespace loom::cli
