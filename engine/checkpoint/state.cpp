#include "engine/checkpoint/state.h"

#include <fmt/format.h>
#include <unordered_set>
#include <utility>

namespace loom::checkpoint {
namespace {

using io::DcpKey;
using io::PlainValue;

std::string text_of(const DcpKey& key) {
  if (const auto* name = std::get_if<std::string>(&key)) return *name;
  return fmt::to_string(std::get<std::int64_t>(key));
}

// A number of an optimizer's state as torch keeps it.
nn::LocalTensor scalar(double value) {
  Tensor tensor = Tensor::host({}, DType::kF32, "optimizer state");
  *tensor.data<float>() = static_cast<float>(value);
  return {tensor, nn::ShardSpec::whole({})};
}

// The options of a group as torch.optim.AdamW, SGD and Muon have them.
std::vector<std::pair<std::string, PlainValue>> torch_options(const nn::GroupState& group) {
  std::vector<std::pair<std::string, PlainValue>> options;
  for (const auto& [name, value] : group.options) {
    if (name == "beta1" || name == "beta2") continue;
    PlainValue plain = PlainValue::real(value);
    if (name == "nesterov") plain = PlainValue::boolean(value != 0);
    if (name == "ns_steps") plain = PlainValue::whole(static_cast<std::int64_t>(value));
    options.emplace_back(name, std::move(plain));
  }
  if (group.options.contains("beta1") && group.options.contains("beta2")) {
    options.emplace_back("betas", PlainValue::tuple({PlainValue::real(group.options.at("beta1")),
                                                     PlainValue::real(group.options.at("beta2"))}));
    for (const char* off : {"amsgrad", "maximize", "foreach", "capturable", "differentiable"}) {
      options.emplace_back(off, PlainValue::boolean(false));
    }
    options.emplace_back("fused", PlainValue());
    options.emplace_back("decoupled_weight_decay", PlainValue::boolean(true));
  }
  return options;
}

PlainValue list_of(const std::vector<std::string>& texts) {
  std::vector<PlainValue> items;
  for (const std::string& text : texts) items.push_back(PlainValue::text(text));
  return PlainValue::list(std::move(items));
}

}  // namespace

ItemName name_of(std::vector<DcpKey> path) {
  std::string name;
  for (const DcpKey& key : path) name += (name.empty() ? "" : ".") + text_of(key);
  return {std::move(name), std::move(path)};
}

void State::add(std::vector<DcpKey> path, const nn::LocalTensor& local) {
  const ItemName name = name_of(std::move(path));
  for (nn::LocalTensor& part : nn::file_parts(local, name.name)) tensors.push_back({{name}, std::move(part)});
}

void State::add(std::vector<DcpKey> path, PlainValue value) {
  values.push_back({name_of(std::move(path)), std::move(value)});
}

void add_module(State& state, const nn::StateDict& module, const std::string& key) {
  for (const nn::StateEntry& entry : module) {
    const std::size_t first = state.tensors.size();
    state.add({key, entry.path}, entry.local);
    for (const std::string& tied : entry.tied_paths) {
      for (std::size_t i = first; i < state.tensors.size(); ++i) state.tensors[i].names.push_back(name_of({key, tied}));
    }
  }
}

void add_optimizer(State& state, const nn::OptimizerState& optimizer,
                   const std::unordered_set<std::string>& elsewhere) {
  std::vector<std::string> without;
  std::int64_t number = 0;
  for (const nn::GroupState& group : optimizer.groups) {
    for (const std::string& path : group.paths) {
      const auto found = optimizer.parameters.find(path);
      if (found == optimizer.parameters.end()) {
        if (!elsewhere.contains(path)) without.push_back(path);
        continue;
      }
      for (const auto& [name, value] : found->second) {
        const auto* tensor = std::get_if<nn::LocalTensor>(&value);
        state.add({"optimizer", "state", path, name}, tensor != nullptr ? *tensor : scalar(std::get<double>(value)));
      }
    }
    for (auto& [name, value] : torch_options(group)) {
      state.add({"optimizer", "param_groups", number, name}, std::move(value));
    }
    state.add({"optimizer", "param_groups", number, "params"}, list_of(group.paths));
    ++number;
  }
  if (!without.empty()) state.add({"optimizer", "without_state"}, list_of(without));
}

}  // namespace loom::checkpoint
