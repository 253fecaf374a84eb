#include "engine/comm/mesh.h"

#include <algorithm>
#include <fmt/format.h>
#include <utility>

#include "engine/comm/local/solo.h"
#include "engine/core/error.h"

namespace loom::comm {
namespace {

void check_axes(std::span<const AxisSize> axes, int ranks) {
  for (std::size_t i = 0; i < axes.size(); ++i) {
    if (axes[i].name.empty()) config_error("axis {} of a mesh has no name", i);
    if (axes[i].size < 1) config_error("axis {} of a mesh is {}, expected 1 or more", axes[i].name, axes[i].size);
    for (std::size_t j = 0; j < i; ++j) {
      if (axes[i].name == axes[j].name) config_error("two axes of a mesh are called {}", axes[i].name);
    }
  }
  if (product(axes) != ranks) {
    config_error("mesh {}, but {} {}; the axes of a mesh multiply to the number of ranks", equation(axes), ranks,
                 ranks == 1 ? "rank runs" : "ranks run");
  }
}

}  // namespace

std::int64_t product(std::span<const AxisSize> axes) {
  std::int64_t result = 1;
  for (const AxisSize& axis : axes) result *= axis.size;
  return result;
}

std::string equation(std::span<const AxisSize> axes) {
  std::vector<std::string> factors;
  for (const AxisSize& axis : axes) factors.push_back(fmt::format("{} {}", axis.name, axis.size));
  return fmt::format("{} = {}", fmt::join(factors, " x "), product(axes));
}

struct Axis::Shared {
  World* world;
  std::vector<int> ranks;  // of that world, which may be part of a job
  std::shared_ptr<ProcessGroup> group;
  std::map<int, Axis> consecutive;
};

const std::shared_ptr<ProcessGroup>& Axis::shared_group() const {
  require(shared_ != nullptr, "an axis of no mesh is used; take one from DeviceMesh::axis()");
  return shared_->group;
}

Axis Axis::make(World& world, const std::vector<int>& ranks, std::string name) {
  Axis axis;
  axis.shared_ = std::make_shared<Shared>();
  axis.shared_->world = &world;
  axis.shared_->ranks = ranks;
  if (ranks.size() == 1) {
    axis.shared_->group = make_solo_group(world.rank(), std::move(name));
  } else {
    const auto own = std::find(ranks.begin(), ranks.end(), world.rank()) - ranks.begin();
    axis.shared_->group = world.split(ranks.front(), static_cast<int>(own), std::move(name), ranks);
  }
  return axis;
}

Axis Axis::consecutive(int ranks, std::string name) const {
  require(ranks > 0 && size() % ranks == 0, "{} consecutive ranks, must divide the axis '{}' of {}", ranks,
          this->name(), size());
  Axis& piece = shared_->consecutive[ranks];
  if (piece.shared_ == nullptr) {
    const auto first = shared_->ranks.begin() + rank() / ranks * ranks;
    piece = make(*shared_->world, {first, first + ranks}, std::move(name));
  }
  return piece;
}

DeviceMesh DeviceMesh::create(World& world, std::vector<AxisSize> axes) {
  check_axes(axes, world.size());
  DeviceMesh mesh;
  mesh.world_ = &world;
  mesh.sizes_ = std::move(axes);
  mesh.strides_.resize(mesh.sizes_.size());
  int stride = 1;
  for (std::size_t i = mesh.sizes_.size(); i-- > 0;) {
    mesh.strides_[i] = stride;
    stride *= mesh.sizes_[i].size;
  }
  for (std::size_t i = 0; i < mesh.sizes_.size(); ++i) {
    mesh.axes_.push_back(Axis::make(world, mesh.ranks_along({&i, 1}), mesh.sizes_[i].name));
  }
  return mesh;
}

const Axis& DeviceMesh::axis(std::string_view name) const { return axes_[index_of(name)]; }

Axis DeviceMesh::flatten(const std::vector<std::string>& names, std::string name) const {
  std::vector<std::size_t> which;
  for (const std::string& one : names) {
    which.push_back(index_of(one));
    if (std::count(names.begin(), names.end(), one) > 1) config_error("axis '{}' is made of {} twice", name, one);
  }
  return Axis::make(*world_, ranks_along(which), std::move(name));
}

std::vector<int> DeviceMesh::coordinates(int rank) const {
  require(rank >= 0 && rank < world_->size(), "rank {} of a mesh of {} ranks", rank, world_->size());
  std::vector<int> result;
  for (std::size_t i = 0; i < sizes_.size(); ++i) result.push_back(rank / strides_[i] % sizes_[i].size);
  return result;
}

std::size_t DeviceMesh::index_of(std::string_view name) const {
  std::vector<std::string_view> names;
  for (std::size_t i = 0; i < sizes_.size(); ++i) {
    if (sizes_[i].name == name) return i;
    names.push_back(sizes_[i].name);
  }
  config_error("the mesh has no axis '{}'; it has {}", name, fmt::join(names, ", "));
}

std::vector<int> DeviceMesh::ranks_along(std::span<const std::size_t> which) const {
  const std::vector<int> own = coordinates(world_->rank());
  int first = world_->rank();
  for (const std::size_t i : which) first -= own[i] * strides_[i];
  std::vector<int> ranks{first};
  for (const std::size_t i : which) {
    std::vector<int> longer;
    for (const int rank : ranks) {
      for (int c = 0; c < sizes_[i].size; ++c) longer.push_back(rank + c * strides_[i]);
    }
    ranks = std::move(longer);
  }
  return ranks;
}

}  // namespace loom::comm
