#include "models/mixin/weight_init_mixin.h"

#include <functional>
#include <unordered_set>

#include "engine/core/error.h"
#include "engine/core/log.h"
#include "engine/core/rank_context.h"
#include "engine/core/spelling.h"
#include "engine/tensor/autograd.h"

namespace loom::models {
namespace {

bool is_norm(const nn::Module& module) { return lower_case(module.type_name()).find("norm") != std::string::npos; }

std::string in_words(const nn::Init& init) {
  switch (init.kind) {
    case nn::Init::Kind::kNormal:
      return fmt::format("N(0, {}^2)", init.std);
    case nn::Init::Kind::kOnes:
      return "1";
    case nn::Init::Kind::kZeros:
      return "0";
    case nn::Init::Kind::kConstant:
      break;
  }
  return fmt::format("{}", init.value);
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
  if (model == nullptr) {
    config_error(
        "a class inherits WeightInitMixin without nn::Module; write 'class M : public nn::Module, public "
        "WeightInitMixin'");
  }
  Run run{seed, {}, {}};
  for (auto& [path, slot] : model->named_slots()) {
    if (!kept.contains(slot->value.id())) run.first_path.emplace(slot->value.id(), path);
  }
  struct Running {
    Run*& current;
    ~Running() { current = nullptr; }
  } const running{run_};
  run_ = &run;
  const autograd::NoGrad no_grad;
  std::unordered_set<nn::Module*> seen;
  visit_children_first(*model, seen, [this](nn::Module& module) { _init_weights(module, kStd); });
  if (run.overruled.empty() || RankContext::current().rank() != 0) return;
  log_warning(
      "WeightInitMixin: {}{}; override _init_weights() to keep the registered values, or leave the mixin out: each "
      "parameter is then drawn as it is registered",
      run.overruled.front(),
      run.overruled.size() == 1 ? "" : fmt::format(" (the first of {} such parameters)", run.overruled.size()));
}

void WeightInitMixin::_init_weights(nn::Module& module, double std) {
  const bool norm = is_norm(module);
  for (const auto& slot : module.own_parameters()) {
    write(*slot, has(*slot, "bias")             ? nn::Init::zeros()
                 : norm && has(*slot, "weight") ? nn::Init::ones()
                                                : nn::Init::normal(std));
  }
}

void WeightInitMixin::write(nn::ParamSlot& slot, const nn::Init& rule) {
  const std::string* path = path_of(slot);
  if (path == nullptr) return;
  const std::string is = in_words(rule), was = in_words(slot.init);
  if (is != was)
    run_->overruled.push_back(fmt::format("'{}' is registered with {}, and {} is written", *path, was, is));
  if (rule.kind == nn::Init::Kind::kNormal) return normal_(slot, rule.std);
  rule.kind == nn::Init::Kind::kOnes ? ones_(slot) : zeros_(slot);
}

const std::string* WeightInitMixin::path_of(const nn::ParamSlot& slot) const {
  if (run_ == nullptr) {
    config_error("'{}' is written by the mixin outside of init_weights(); write it in _init_weights()", slot.name);
  }
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
