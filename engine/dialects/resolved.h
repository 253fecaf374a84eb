// Resolved: the job that a file and a command line say, before defaults that depend on each other are filled in.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/dialects/translate.h"
#include "engine/job/job.h"

namespace loom::dialects {

// A job without any flag. Fused kernels are those of their flags; --kernels settles them later.
job::Job unwritten_job();

struct Resolved {
  job::Job job = unwritten_job();
  sharding::Fsdp2Config config;
  bool has_config = false;
  int world = 1;
};

// The translation's flags and keys. ConfigError for a flag whose value its key does not take.
Resolved resolve(const Translation& translation, const Context& context);

// Names of the keys that the two do not have alike: flags, then keys of fsdp2_config.yaml. The path of that
// file does not count, no --global-batch-size is one micro-batch of each rank, and sharding_size: auto is all ranks.
std::vector<std::string> differences(const Resolved& one, const Resolved& other);

// Values for rows: the job's value of a flag as YAML, "null" where it is none.
std::string value_of(const Resolved& job, std::string_view flag);

}  // namespace loom::dialects
