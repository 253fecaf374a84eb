#include "engine/plan/plan_fp8.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/core/error.h"
#include "engine/nn/layers.h"
#include "sharding/fully_shard.h"
#include "sharding/tensor/share_matrices.h"

namespace loom::plan {
namespace {

// Of parameters in groups: the box that this rank multiplies with.
using Boxes = std::unordered_map<const nn::ParamSlot*, Shape>;

Boxes boxes_of(nn::Module& model) {
  Boxes boxes;
  for (const sharding::FsdpState* state : sharding::FsdpState::collect(model)) {
    if (state->group() == nullptr) continue;
    for (const auto& param : state->group()->params()) {
      for (const nn::ParamSlot* slot : param->home().slots) boxes[slot] = param->shape();
    }
  }
  return boxes;
}

const Shape& box_of(const Boxes& boxes, const nn::ParamSlot& slot) {
  const auto found = boxes.find(&slot);
  return found == boxes.end() ? slot.shard.global_shape : found->second;
}

void add_wide(virtual_time::Fp8Products& fp8, nn::Module& module, const Boxes& boxes) {
  if (const auto* table = dynamic_cast<nn::Embedding*>(&module)) {
    fp8.wide.insert({table->weight.shard.global_shape[0], box_of(boxes, table->weight)[0]});
  }
  for (const auto& [name, child] : module.children()) add_wide(fp8, *child, boxes);
}

// What ranks that share matrices cast before they gather it.
struct CastParts {
  int ranks = 1;
  std::set<std::string> colwise, rowwise;
};

CastParts parts_of(nn::Module& model, virtual_time::Fp8Products& fp8) {
  const auto shares = model.attachment<sharding::TensorShares>();
  if (shares == nullptr || !shares->matrices.sequence_parallel || fp8.recipe.name != "tensorwise") return {};
  const sharding::SharedMatrices& matrices = shares->matrices;
  for (const std::string& path : shares->blocks) fp8.gathered[path] = 0.5;
  for (const std::string& path : matrices.rowwise) fp8.gathered[path] = 0.5;
  return {matrices.ranks,
          {matrices.colwise.begin(), matrices.colwise.end()},
          {matrices.rowwise.begin(), matrices.rowwise.end()}};
}

// Adds up the shares of the layers right below a module. The last one reads what the others have led to; those before
// it that have inputs of one width read one tensor.
class CastSums {
 public:
  CastSums(CastParts parts, const Boxes& boxes) : parts_(std::move(parts)), boxes_(boxes) {}

  void add_below(nn::Module& module, const std::string& path) {
    std::vector<std::pair<std::string, nn::MatrixLayer*>> layers;
    for (const auto& [name, child] : module.children()) {
      const std::string below = path.empty() ? name : path + "." + name;
      if (auto* layer = dynamic_cast<nn::MatrixLayer*>(child.get())) layers.emplace_back(below, layer);
      add_below(*child, below);
    }
    for (std::size_t i = 0; i < layers.size(); ++i) {
      const auto reads_the_same = [&](const auto& other) {
        return sizes_of(*other.second).second == sizes_of(*layers[i].second).second;
      };
      const bool is_last = i + 1 == layers.size();
      const auto readers = is_last ? 1 : std::count_if(layers.begin(), layers.end() - 1, reads_the_same);
      add(layers[i].first, *layers[i].second, 1.0 / static_cast<double>(readers));
    }
  }
  std::map<std::pair<std::int64_t, std::int64_t>, virtual_time::CastShares> means() const {
    std::map<std::pair<std::int64_t, std::int64_t>, virtual_time::CastShares> means;
    for (const auto& [sizes, sum] : sums_) means[sizes] = {sum.input / sum.layers, sum.gradient / sum.layers};
    return means;
  }

 private:
  struct Sum {
    double layers = 0, input = 0, gradient = 0;
  };
  // Outputs and inputs.
  std::pair<std::int64_t, std::int64_t> sizes_of(nn::MatrixLayer& layer) const {
    const nn::MatrixLayer::Part matrix = layer.parts().front();
    const Shape& box = box_of(boxes_, *matrix.slot);
    return {box[*matrix.outputs], box[*matrix.inputs]};
  }
  void add(const std::string& path, nn::MatrixLayer& layer, double input) {
    Sum& sum = sums_[sizes_of(layer)];
    sum.layers += 1;
    sum.input += parts_.colwise.contains(path) ? input / parts_.ranks : input;
    sum.gradient += parts_.rowwise.contains(path) ? 1.0 / parts_.ranks : 1.0;
  }

  const CastParts parts_;
  const Boxes& boxes_;
  std::map<std::pair<std::int64_t, std::int64_t>, Sum> sums_;
};

// Of a group: bytes of matrices that are cast before the gather count half.
double gathered_share(const sharding::ParamGroup& group, const virtual_time::Fp8Products& fp8) {
  double all = 0, carried = 0;
  for (const auto& param : group.params()) {
    const auto bytes = static_cast<double>(param->gather_input_bytes());
    const Shape& shape = param->shape();
    const bool is_cast = shape.ndim() == 2 && element_bytes(param->compute_dtype()) == 2 && param->requires_grad() &&
                         !fp8.wide.contains(shape[0]);
    all += bytes;
    carried += is_cast ? bytes / 2 : bytes;
  }
  return all > 0 ? carried / all : 1;
}

}  // namespace

virtual_time::HardwareProfile in_fp8(virtual_time::HardwareProfile profile, const std::optional<std::string>& recipe,
                                     bool gathers) {
  if (!recipe) return profile;
  if (profile.matrix.fp8_flops_per_s == 0) {
    config_error(
        "--fp8-recipe is {}, but device profile '{}' has no products in FP8; plan for a device that has them, add "
        "fp8_flops_per_s and fp8_efficiency to the profile's matrix section, or remove the flag",
        *recipe, profile.name);
  }
  profile.fp8 = {.recipe = *virtual_time::find_fp8_recipe(*recipe), .gathers = gathers};
  return profile;
}

virtual_time::HardwareProfile with_layers(virtual_time::HardwareProfile profile, nn::Module& model) {
  if (!profile.fp8) return profile;
  const Boxes boxes = boxes_of(model);
  add_wide(*profile.fp8, model, boxes);
  CastSums sums(parts_of(model, *profile.fp8), boxes);
  sums.add_below(model, "");
  profile.fp8->casts = sums.means();
  if (!profile.fp8->gathers) return profile;
  for (const sharding::FsdpState* state : sharding::FsdpState::collect(model)) {
    if (state->group() == nullptr) continue;
    profile.fp8->gathered[state->group()->path()] = gathered_share(*state->group(), *profile.fp8);
  }
  return profile;
}

}  // namespace loom::plan
