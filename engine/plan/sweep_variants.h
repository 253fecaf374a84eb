// Variants of the best configuration of a mesh, which a sweep tries. Private to engine/plan.
#pragma once

#include <vector>

#include "engine/plan/plan_choice.h"

namespace loom::plan {

// Sharding over the divisors of a node, and over whole nodes; dp_replicate is the rest.
std::vector<PlanChoice> sharding_variants(const ChoicePlans& plans, const PlanChoice& choice);

// Less memory for more time, or the other way round: recompute that keeps the results of selected operators, recompute
// of every 2nd, 3rd and 4th module, and of all with their inputs on the host. Empty where flags say what is recomputed.
std::vector<PlanChoice> recompute_variants(const ChoicePlans& plans, const PlanChoice& choice);

// A pipeline with 2 and 4 stages a rank. Empty without one, and where flags say its schedule or stages.
std::vector<PlanChoice> pipeline_variants(const ChoicePlans& plans, const PlanChoice& choice);

// Steps of several micro-batches: parameters gathered once a step, gradients reduced once a step, and both. Empty for
// one micro-batch, and for pipelines.
std::vector<PlanChoice> accumulation_variants(const ChoicePlans& plans, const PlanChoice& choice);

// The loss in chunks. Empty where flags say how, or where the loss has none.
std::vector<PlanChoice> loss_variants(const ChoicePlans& plans, const PlanChoice& choice);

}  // namespace loom::plan
