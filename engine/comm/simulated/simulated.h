// A world of any size with one rank in it: plans, and checks of a configuration at a size nobody has.
//
// Model    nothing moves and nobody is waited for. The peers are taken to be alike: what they would send is what this
//          rank sends. So all_gather repeats this rank's part, a sum over N ranks is N times this rank's values, an
//          average or a maximum is this rank's values. Null pointers (a dry run has no bytes) are accepted everywhere.
// Share    share() gives null: a gather that needs shared memory falls back to one of its own, as between nodes.
// Used     the world can keep a list of the groups over which its rank has communicated.
// Threads  as ProcessGroup; calls never block.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/comm/process_group.h"

namespace loom::comm {

// Ranks that communicate with one another, and the groups that they are.
struct UsedGroup {
  std::vector<int> ranks;          // two or more
  std::vector<std::string> names;  // in the order of their first calls, each once
};

// In the order of their first calls, each set of ranks once.
class UsedGroups {
 public:
  // One rank alone never communicates: it is not added.
  void add(const std::string& name, const std::vector<int>& ranks);
  const std::vector<UsedGroup>& all() const { return all_; }

 private:
  std::vector<UsedGroup> all_;
};

// `used`, unless null, gets each group at its first call. Precondition: 0 <= rank < size.
std::unique_ptr<World> make_simulated_world(int rank, int size, std::shared_ptr<UsedGroups> used = nullptr);

}  // namespace loom::comm
