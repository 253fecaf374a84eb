// Cases of nested expert groups, of axes/orders: a decoder of a base of the reference, its experts shared over ep.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "engine/launch/run_ranks.h"
#include "sharding/policy.h"
#include "tests/support/case_json.h"

namespace loom::test {

struct ExpertScheduleCase {
  std::filesystem::path base;  // with config.json
  int world = 2;
  int ep = 2;
  int expert_shard_dim = 0;
  int iterations = 2;
  bool reshard = true;
  bool one_group_of_norm_and_head = false;
  bool recomputes_layers = false;
  std::vector<std::pair<std::string, std::vector<std::string>>> forward_prefetch, backward_prefetch;
  std::vector<std::string> expected;
};

// Of the content of a case in `folder`. Throws where the case asks for something else.
ExpertScheduleCase read_expert_schedule(const std::filesystem::path& folder, const CaseJson& content);

// The tokens of the last iteration on one rank.
std::vector<std::string> expert_schedule(const ExpertScheduleCase& c, sharding::GatherLayout layout,
                                         comm::World& world);

}  // namespace loom::test
