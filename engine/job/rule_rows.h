// The rooms' rules. Private to engine/job.
#pragma once

#include "engine/job/rules.h"

namespace loom::job {

void add_model_rules(std::vector<Rule>& table);
void add_parallel_rules(std::vector<Rule>& table);
void add_objective_rules(std::vector<Rule>& table);
void add_data_rules(std::vector<Rule>& table);
void add_schedule_rules(std::vector<Rule>& table);
void add_optimizer_rules(std::vector<Rule>& table);
void add_recompute_rules(std::vector<Rule>& table);
void add_memory_rules(std::vector<Rule>& table);
void add_checkpoint_rules(std::vector<Rule>& table);
void add_output_rules(std::vector<Rule>& table);

}  // namespace loom::job
