// The configuration of a job as it runs: every key of training, with its value after all rules, as YAML.
//
// File     below each heading a line per key, its name as in a configuration: "micro_batch_size: 1". null: not given.
//          Texts are quoted, and numbers keep every digit. The flags that a program of pretrain() added come last, as
//          texts, in place of keys with their names. The sharding stands in its file, or among these lines where
//          another dialect or the command line says it.
// Threads  safe from any number of threads.
#pragma once

#include <string>

#include "engine/job/job.h"

namespace loom::job {

// Its name in the folder of --save.
inline constexpr const char* kEffectiveConfigName = "effective_config.yaml";

std::string effective_config(const Job& job);

}  // namespace loom::job
