// DeviceMesh: the ranks of a world as the cells of a box with named axes.
//
//   auto mesh = DeviceMesh::create(world, {{"dp_replicate", 2}, {"dp_shard", 4}});   // 8 ranks
//   const Axis shard = mesh.axis("dp_shard");             // this rank and the 3 that differ from it in dp_shard alone
//   const Axis data = mesh.flatten({"dp_replicate", "dp_shard"}, "data");
//
// Order    slowest axis first, as torchtitan writes it: consecutive ranks differ in the last axis. Its names are pp,
//          dp_replicate, dp_shard, cp, tp; a mesh takes any.
// Groups   one exchange over the world an axis, whatever the number of its groups. An axis of size 1 has a group of
//          this rank alone, which never communicates and costs no exchange.
// Errors   ConfigError, the same on every rank: axes that do not multiply to the number of ranks, a name given twice,
//          a name that the mesh does not have.
// Threads  the rank's host thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/comm/process_group.h"

namespace loom::comm {

struct AxisSize {
  std::string name;
  int size = 1;
  friend bool operator==(const AxisSize&, const AxisSize&) = default;
};

// The product of the sizes.
std::int64_t product(std::span<const AxisSize> axes);
// "dp_replicate 2 x dp_shard 4 = 8"
std::string equation(std::span<const AxisSize> axes);

// One axis as this rank sees it: the ranks that differ from it in this axis alone. A value: copies share the group.
class Axis {
 public:
  // No mesh: every other member throws InvariantError.
  Axis() = default;

  const std::string& name() const { return group().name(); }
  int size() const { return group().size(); }
  int rank() const { return group().rank(); }                        // along the axis
  const std::vector<int>& ranks() const { return group().ranks(); }  // world ranks, in axis order
  ProcessGroup& group() const { return *shared_group(); }            // of this rank alone where size() is 1
  const std::shared_ptr<ProcessGroup>& shared_group() const;         // for work that outlives the axis

  // The `ranks` neighbours this rank is among when the axis is cut into pieces of `ranks`. Collective over the world at
  // its first use for a number, made once. Precondition: `ranks` divides size().
  Axis consecutive(int ranks, std::string name) const;

 private:
  friend class DeviceMesh;
  struct Shared;
  // The axis of these world ranks. Collective over the world unless it has one rank.
  static Axis make(World& world, const std::vector<int>& ranks, std::string name);

  std::shared_ptr<Shared> shared_;
};

class DeviceMesh {
 public:
  // Collective. `axes` slowest first; their product is world.size(). `world` outlives the mesh and its axes.
  static DeviceMesh create(World& world, std::vector<AxisSize> axes);

  const std::vector<AxisSize>& axes() const { return sizes_; }
  const Axis& axis(std::string_view name) const;
  // The axes called `names`, adjacent or not, as one: the first varies slowest. Collective.
  Axis flatten(const std::vector<std::string>& names, std::string name) const;
  // Where a world rank is, an entry an axis.
  std::vector<int> coordinates(int rank) const;

 private:
  std::size_t index_of(std::string_view name) const;
  // The world ranks that differ from this one in axes `which` alone.
  std::vector<int> ranks_along(std::span<const std::size_t> which) const;

  World* world_ = nullptr;
  std::vector<AxisSize> sizes_;
  std::vector<int> strides_;  // world ranks between neighbours on an axis
  std::vector<Axis> axes_;
};

}  // namespace loom::comm
