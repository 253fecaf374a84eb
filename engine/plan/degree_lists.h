// The degrees of parallelism that a sweep tries. Private to engine/plan.
#pragma once

#include <vector>

#include "engine/plan/sweep.h"

namespace loom::plan {

// Meshes of a world whose ranks that share tokens, and that share experts, are among `together` neighbours.
class DegreeLists {
 public:
  explicit DegreeLists(const ChoicePlans& plans);

  // Choices of meshes with `together` that were not given before, with the user's other keys: sharding over all ranks,
  // and over those of a node. By the number of stages, ascending, and the user's own. Of those that cannot be, the
  // reasons join `pruned`.
  std::vector<PlanChoice> meshes(int together, std::vector<Pruned>& pruned);

 private:
  struct Axis {
    int Degrees::*degree;
    bool is_fixed;
    std::vector<int> possible;  // ascending
    std::vector<int> checked;
  };
  bool is_within(const Degrees& degrees, int together) const;
  void check_degrees(Axis& axis, int together, std::vector<Pruned>& pruned);
  void add_meshes(const Degrees& degrees, std::vector<Pruned>& pruned, std::vector<PlanChoice>& meshes);

  const ChoicePlans& plans_;
  Degrees given_;
  std::vector<Axis> axes_;
  std::vector<Degrees> seen_;
};

// `base` with these degrees (but for dp_*), and shards over `sharding_size` ranks.
PlanChoice with_degrees(const ChoicePlans& plans, const Degrees& degrees, int sharding_size);

void count(std::vector<Pruned>& pruned, const std::string& reason);
// What a ConfigError says of a candidate, without its place and its remedy.
std::string reason_of(const std::string& message);

}  // namespace loom::plan
