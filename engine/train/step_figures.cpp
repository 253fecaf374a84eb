#include "engine/train/step_figures.h"

#include <algorithm>
#include <cctype>
#include <unordered_map>
#include <utility>

#include "sharding/reuse_fp32.h"

namespace loom::train {
namespace {

bool is_number(std::string_view name) {
  return !name.empty() && std::ranges::all_of(name, [](unsigned char c) { return std::isdigit(c) != 0; });
}

}  // namespace

std::string layer_of(const std::string& path) {
  for (std::size_t begin = 0; begin < path.size();) {
    const std::size_t end = std::min(path.find('.', begin), path.size());
    if (is_number(std::string_view(path).substr(begin, end - begin))) return path.substr(0, end);
    begin = end + 1;
  }
  const std::size_t last = path.rfind('.');
  return last == std::string::npos ? path : path.substr(0, last);
}

void ZerosInGrad::begin_phase(std::string_view phase) {
  if (phase == "optimizer") zeros_ = sharding::zeros_in_grad(module_);
}

NormsByLayer::NormsByLayer(nn::Module& module, std::function<double()> loss_scale)
    : module_(module), loss_scale_(std::move(loss_scale)) {
  std::unordered_map<std::string, std::size_t> places;
  for (auto& [path, parameter] : module.named_parameters()) {
    const std::string layer = layer_of(path);
    if (places.emplace(layer, norms_.size()).second) norms_.push_back({layer});
  }
  parts_ = {norms_.size(), [places](const std::string& path) { return places.at(layer_of(path)); }};
}

void NormsByLayer::begin_phase(std::string_view phase) {
  if (phase != "optimizer") return;
  const double scale = loss_scale_();
  const std::vector<double> norms = sharding::grad_norms(module_, parts_);
  for (std::size_t i = 0; i < norms.size(); ++i) norms_[i].grad = norms[i] / scale;
}

void NormsByLayer::end_step(std::int64_t) {
  const sharding::JoinedShards joined(module_);  // of --reuse-fp32-param
  const std::vector<double> norms = sharding::params_norms(module_, parts_);
  for (std::size_t i = 0; i < norms.size(); ++i) norms_[i].params = norms[i];
}

}  // namespace loom::train
