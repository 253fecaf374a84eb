// The parts of a job that ranks in separate processes compare before the first step: every key of the table, by its
// value after the rules, and the flags that a program of pretrain() added. New keys are compared unless a row opts out.
//
// Threads   safe from any number of threads.
#pragma once

#include <string>
#include <vector>

#include "engine/comm/same_entries.h"
#include "engine/job/key.h"

namespace loom::job {

std::vector<comm::SaidEntry> agreement_entries(const Job& job);

// A value in such an entry, on one line: "none", "the flag", "3", "a, b".
std::string agreement_text(const Key& key, const Value& value);

}  // namespace loom::job
