// The job with one key of its fsdp2_config.yaml otherwise, for finding out whether the run had it so. Private to
// engine/explain.
#pragma once

#include <string>
#include <vector>

#include "engine/plan/plan_choice.h"

namespace loom::explain {

// reshard_after_forward, prefetch, recompute, param_dtype, reduce_dtype, offload; each choice once, none equal to the
// job's. Empty without a file.
std::vector<plan::PlanChoice> other_settings(const plan::ChoicePlans& plans);

// "reshard_after_forward: false": the keys in which a configuration differs.
std::string describe_keys(const sharding::Fsdp2Config& config, const sharding::Fsdp2Config& base);

}  // namespace loom::explain
