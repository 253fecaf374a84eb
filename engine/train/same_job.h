// same_job: the values that ranks in separate processes must share to train one model, and their agreement on it before
// the first step. Threads of one process share their arguments and inputs, and need no check.
//
// Compared       every scalar of the model's configuration, by value, not by spelling; the effect of each key of the
//                sharding file (sharding/config/effective_config.h); each parameter's path, shape, type and whether it
//                is trained; of loaded weights, the reference model's too, each tensor's first and last 4 KiB; all of
//                an adapter and of the tokenizer; the data (data/content.h), or for data without --data-path the first
//                micro-batch. The command line adds its flags (job/agreement.h), and a checkpoint is compared when it
//                is opened (checkpoint/resume.h).
// Not compared   the paths of these; their contents are.
// Errors         ConfigError, the same on every rank, with the flag, key or file and each rank's value
//                (comm/same_entries.h).
#pragma once

#include <string_view>
#include <vector>

#include "engine/comm/same_entries.h"
#include "engine/train/inputs.h"
#include "models/lora/adapter_folder.h"

namespace loom::train {

// The entries of this process, before its rank starts.
std::vector<comm::SaidEntry> job_entries(const TrainSections& arguments, const PretrainCallbacks& callbacks,
                                         const TrainingInputs& inputs);

// Adds what distinguishes the weights and adapters of two processes: each tensor by name, size and digest of its ends
// (for adapters, of all bytes). `of` begins their keys.
void add_weights(std::vector<comm::SaidEntry>& entries, const io::HfWeights& weights, std::string_view of = "weights");
void add_adapter(std::vector<comm::SaidEntry>& entries, const models::AdapterFolder& folder);

// Collective, and the first one of a job: it has the same size on every rank, whatever the entries are.
void check_same_job(const std::vector<comm::SaidEntry>& entries, comm::ProcessGroup& everyone);

}  // namespace loom::train
