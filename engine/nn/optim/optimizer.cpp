#include "engine/nn/optim/optimizer.h"

#include <algorithm>
#include <fmt/format.h>
#include <unordered_set>

#include "engine/core/error.h"
#include "engine/core/spelling.h"
#include "engine/nn/layers.h"
#include "engine/nn/state_dict.h"

namespace loom::nn {
namespace {

bool is_norm_or_bias(const std::string& path, const ParamSlot& slot) {
  return slot.shard.global_shape.ndim() <= 1 || path == "bias" || path.ends_with(".bias");
}

// "model.layers.0.weight" -> "model.layers.0", "weight".
std::pair<std::string_view, std::string_view> split_last(std::string_view path) {
  const std::size_t dot = path.rfind('.');
  if (dot == std::string_view::npos) return {"", path};
  return {path.substr(0, dot), path.substr(dot + 1)};
}

// The parameters of embeddings and of the output layer, tied ones too.
std::unordered_set<const void*> vocabulary_parameters(Module& module) {
  std::unordered_set<const void*> found;
  for (const auto& [path, slot] : module.named_slots()) {
    const std::string_view owner = split_last(path).first;
    const std::string_view owner_name = split_last(owner).second;
    const bool is_output =
        owner_name == "lm_head" || owner_name == "output_layer" || owner_name == "score" || owner_name == "v_head";
    const bool is_embedding = dynamic_cast<Embedding*>(module.find(owner)) != nullptr;
    if (is_output || is_embedding) found.insert(slot->value.id());
  }
  return found;
}

bool is_stack_of_matrices(const std::string& path, const ParamSlot& slot) {
  const int dims = slot.shard.global_shape.ndim();
  return (dims == 2 || dims == 3) && !is_norm_or_bias(path, slot);
}

// Groups that are made as parameters come.
class GroupMaker {
 public:
  explicit GroupMaker(std::optional<double> weight_decay) : weight_decay_(weight_decay) {}

  // The group of these parameters.
  ParameterGroup& of(bool is_matrix, const ParameterRule& rule) {
    for (Made& made : made_) {
      if (made.is_matrix == is_matrix && made.rule == rule) return made.group;
    }
    ParameterGroup group{.parameters = {},
                         .weight_decay = rule.decays ? weight_decay_ : 0,
                         .hidden_matrices = is_matrix,
                         .lr_mult = rule.lr_mult};
    return made_.emplace_back(Made{is_matrix, rule, std::move(group)}).group;
  }

  // Matrices first, then by decay, then as they were made.
  ParameterGroups take() {
    std::ranges::stable_sort(made_, {}, [](const Made& made) { return std::pair(!made.is_matrix, !made.rule.decays); });
    ParameterGroups groups;
    for (Made& made : made_) groups.push_back(std::move(made.group));
    return groups;
  }

 private:
  struct Made {
    bool is_matrix = false;
    ParameterRule rule;
    ParameterGroup group;
  };

  const std::optional<double> weight_decay_;
  std::vector<Made> made_;
};

void check_is_not_gathered(const std::string& path, const ParamSlot& slot) {
  if (slot.holds != SlotHolds::kGathered) return;
  config_error(
      "make_parameter_groups: parameter '{}' is gathered now, and what its slot holds is a copy; make the optimizer "
      "between steps, or reshard first",
      path);
}

std::vector<std::string> paths_of(const ParameterGroup& group) {
  std::vector<std::string> paths;
  for (const OptimizedParameter& parameter : group.parameters) paths.push_back(parameter.path);
  return paths;
}

std::string words_of(const ParameterState& state) {
  std::vector<std::string> names;
  for (const auto& [name, value] : state) names.push_back(name);
  return fmt::format("{}", fmt::join(names, ", "));
}

// Every parameter of the state is one of `known`.
void check_known(std::string_view name, const OptimizerState& state, const std::vector<std::string>& known) {
  const std::unordered_set<std::string> own(known.begin(), known.end());
  for (const auto& [path, given] : state.parameters) {
    if (own.contains(path)) continue;
    const auto nearest = nearest_spelling(path, known);
    config_error("load_state_dict of {}: it has no parameter '{}'{}", name, path,
                 nearest ? fmt::format("; the nearest is '{}'", *nearest) : "");
  }
}

}  // namespace

ParameterGroups make_parameter_groups(Module& module, const GroupOptions& options) {
  GroupMaker groups(options.weight_decay);
  if (!options.rule_of) {  // these may be empty
    if (options.hidden_matrices_apart) groups.of(/*is_matrix=*/true, {});
    groups.of(/*is_matrix=*/false, {});
    if (options.no_decay_on_norms_and_biases) groups.of(/*is_matrix=*/false, {.decays = false});
  }
  std::unordered_set<const void*> vocabulary;
  if (options.hidden_matrices_apart) vocabulary = vocabulary_parameters(module);
  std::unordered_set<const void*> seen;
  for (const auto& [path, slot] : module.named_slots()) {
    if (!slot->value.requires_grad() || !seen.insert(slot->value.id()).second) continue;
    check_is_not_gathered(path, *slot);
    const bool is_matrix =
        options.hidden_matrices_apart && is_stack_of_matrices(path, *slot) && !vocabulary.contains(slot->value.id());
    ParameterRule rule = options.rule_of ? options.rule_of(path) : ParameterRule{};
    if (options.no_decay_on_norms_and_biases && is_norm_or_bias(path, *slot)) rule.decays = false;
    groups.of(is_matrix, rule).parameters.push_back({path, slot->value, slot->shard});
  }
  return groups.take();
}

OptimizerState host_copies(const OptimizerState& state) {
  OptimizerState copies = state;
  for (auto& [path, parameter] : copies.parameters) {
    for (auto& [name, value] : parameter) {
      if (auto* tensor = std::get_if<LocalTensor>(&value)) tensor->value = host_copy(tensor->value);
    }
  }
  return copies;
}

void Optimizer::zero_grad() {
  for (const ParameterGroup& group : groups_) {
    for (const OptimizedParameter& parameter : group.parameters) parameter.value.set_grad({});
  }
}

std::vector<Tensor> Optimizer::parameters() const {
  std::vector<Tensor> found;
  for (const ParameterGroup& group : groups_) {
    for (const OptimizedParameter& parameter : group.parameters) found.push_back(parameter.value);
  }
  return found;
}

void Optimizer::set_lr(double lr) {
  for (ParameterGroup& group : groups_) group.lr = lr * group.lr_mult;
}

void Optimizer::check_paths(std::string_view verb) const {
  for (const ParameterGroup& group : groups_) {
    for (const OptimizedParameter& parameter : group.parameters) {
      if (!parameter.path.empty()) continue;
      config_error("{} of {}: a parameter {} has no path; make the optimizer from make_parameter_groups(model)", verb,
                   name(), to_string(parameter.value.shape()));
    }
  }
}

OptimizerState Optimizer::state_dict() const {
  check_paths("state_dict");
  OptimizerState state;
  for (const ParameterGroup& group : groups_) {
    GroupState& saved = state.groups.emplace_back(GroupState{paths_of(group), options(group)});
    saved.options["lr"] = group.lr.value();
    if (group.lr_mult != 1) saved.options["lr_mult"] = group.lr_mult;
    saved.options["weight_decay"] = group.weight_decay.value();
    for (const OptimizedParameter& parameter : group.parameters) {
      ParameterState own = state_of(parameter);
      if (!own.empty()) state.parameters.emplace(parameter.path, std::move(own));
    }
  }
  return state;
}

void Optimizer::check_groups(const OptimizerState& state) const {
  if (state.groups.empty()) return;
  if (state.groups.size() != groups_.size()) {
    config_error(
        "load_state_dict of {}: the state has {} parameter groups, and this optimizer has {}; group them alike", name(),
        state.groups.size(), groups_.size());
  }
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    const GroupState& given = state.groups[i];
    if (given.paths != paths_of(groups_[i])) {
      config_error(
          "load_state_dict of {}: parameter group {} holds other parameters than in the state ({} and {}); group them "
          "alike",
          name(), i, groups_[i].parameters.size(), given.paths.size());
    }
    std::map<std::string, double> expected = options(groups_[i]);
    expected["lr"] = expected["weight_decay"] = 0;
    for (const auto& [option, value] : expected) {
      if (!given.options.contains(option)) {
        config_error("load_state_dict of {}: parameter group {} has no '{}' in the state", name(), i, option);
      }
    }
  }
}

void Optimizer::check_state(const ParameterGroup& group, const OptimizedParameter& parameter,
                            const ParameterState& given) const {
  const auto has = [&given]<class T>(const std::string& piece, T*) {
    const auto found = given.find(piece);
    return found != given.end() && std::holds_alternative<T>(found->second);
  };
  const StateNames names = state_names(group);
  const std::vector<std::string>&tensors = names.tensors, &numbers = names.numbers;
  const bool same_names =
      given.size() == tensors.size() + numbers.size() &&
      std::ranges::all_of(tensors, [&](const auto& piece) { return has(piece, static_cast<LocalTensor*>(nullptr)); }) &&
      std::ranges::all_of(numbers, [&](const auto& piece) { return has(piece, static_cast<double*>(nullptr)); });
  if (!same_names) {
    config_error("load_state_dict of {}: the state of '{}' is ({}); it takes the tensors {} and the numbers {}", name(),
                 parameter.path, words_of(given), fmt::join(tensors, ", "), fmt::join(numbers, ", "));
  }
  for (const std::string& piece : tensors) {
    const LocalTensor& tensor = std::get<LocalTensor>(given.at(piece));
    const Shape& shape = parameter.value.shape();
    if (contains(tensor.shard, tensor.value.shape(), parameter.shard, shape)) continue;
    config_error("load_state_dict of {}: this rank has {} of '{}', and its {} was given as {}", name(),
                 describe(parameter.shard, shape), parameter.path, piece, describe(tensor.shard, tensor.value.shape()));
  }
}

void Optimizer::load_state_dict(const OptimizerState& state) {
  check_paths("load_state_dict");
  check_groups(state);
  std::vector<std::string> known;
  for (const ParameterGroup& group : groups_) {
    for (const OptimizedParameter& parameter : group.parameters) {
      known.push_back(parameter.path);
      const auto given = state.parameters.find(parameter.path);
      if (given != state.parameters.end()) check_state(group, parameter, given->second);
    }
  }
  check_known(name(), state, known);
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    ParameterGroup& group = groups_[i];
    if (!state.groups.empty()) {
      const std::map<std::string, double>& options = state.groups[i].options;
      group.lr = options.at("lr");
      const auto lr_mult = options.find("lr_mult");
      group.lr_mult = lr_mult == options.end() ? 1 : lr_mult->second;
      group.weight_decay = options.at("weight_decay");
      set_options(group, options);
    }
    for (const OptimizedParameter& parameter : group.parameters) {
      const auto given = state.parameters.find(parameter.path);
      if (given == state.parameters.end()) {
        drop_state(parameter);
        continue;
      }
      const ParameterState made = make_state(group, parameter, given->second);
      for (const std::string& piece : state_names(group).tensors) {
        copy_box(std::get<LocalTensor>(made.at(piece)), std::get<LocalTensor>(given->second.at(piece)),
                 parameter.path + " " + piece);
      }
    }
  }
}

}  // namespace loom::nn
