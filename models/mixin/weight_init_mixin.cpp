#include "models/mixin/weight_init_mixin.h"

#include <algorithm>
#include <cctype>
#include <functional>
#include <unordered_set>

#include "engine/core/error.h"
#include "engine/tensor/autograd.h"

namespace loom::models {
namespace {

bool is_norm(const nn::Module& module) {
  std::string name(module.type_name());
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  return name.find("norm") != std::string::npos;
}

bool has(const nn::ParamSlot& slot, std::string_view word) { return slot.name.find(word) != std::string::npos; }

void visit_children_first(nn::Module& module, std::unordered_set<nn::Module*>& seen,
                          const std::function<void(nn::Module&)>& visit) {
  if (!seen.insert(&module).second) return;
  for (auto& [name, child] : module.children()) visit_children_first(*child, seen, visit);
  visit(module);
}

}  // namespace

void WeightInitMixin::init_weights(std::uint64_t seed, const nn::KeptValues& kept) {
  auto* model = dynamic_cast<nn::Module*>(this);
  check_model(model != nullptr, "a class inherits WeightInitMixin without nn::Module; inherit both");
  Run run{seed, {}};
  for (auto& [path, slot] : model->named_slots()) {
    if (!kept.contains(slot->value.id())) run.first_path.emplace(slot->value.id(), path);
  }
  struct Running {
    const Run*& current;
    ~Running() { current = nullptr; }
  } const running{run_};
  run_ = &run;
  const autograd::NoGrad no_grad;
  std::unordered_set<nn::Module*> seen;
  visit_children_first(*model, seen, [this](nn::Module& module) { _init_weights(module, kStd); });
}

void WeightInitMixin::_init_weights(nn::Module& module, double std) {
  const bool norm = is_norm(module);
  for (const auto& slot : module.own_parameters()) {
    if (has(*slot, "bias")) {
      zeros_(*slot);
    } else if (norm && has(*slot, "weight")) {
      ones_(*slot);
    } else {
      normal_(*slot, std);
    }
  }
}

const std::string* WeightInitMixin::path_of(const nn::ParamSlot& slot) const {
  check_model(run_ != nullptr, "'{}' is written by the mixin outside of init_weights(); call init_weights()",
              slot.name);
  const auto found = run_->first_path.find(slot.value.id());
  return found == run_->first_path.end() ? nullptr : &found->second;
}

void WeightInitMixin::normal_(nn::ParamSlot& slot, double std) {
  if (const std::string* path = path_of(slot)) nn::write_normal(slot, *path, run_->seed, std);
}

void WeightInitMixin::zeros_(nn::ParamSlot& slot) {
  if (path_of(slot) != nullptr) slot.value.fill(0);
}

void WeightInitMixin::ones_(nn::ParamSlot& slot) {
  if (path_of(slot) != nullptr) slot.value.fill(1);
}

}  // namespace loom::models
