#include "models/decoder/layer_parts.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <unordered_map>

#include "engine/core/error.h"
#include "engine/tensor/autograd.h"
#include "models/decoder/layer_recompute.h"
#include "offload/activation_swap.h"
#include "recompute/checkpoint.h"
#include "recompute/discarding.h"

namespace loom::models {
namespace {

using nn::Args;
using nn::Value;
using sharding::RecomputedModule;
using sharding::RecomputedPart;

// Notes attached to modules: each has the path for messages.
struct RecomputedCoreAttention {
  std::string path;
};
struct RecomputedActivation {
  std::string path;
};
struct RecomputedNorms {
  std::string path;
};

// With the list of layers: the checkpoints over several of them.
struct LayerGroups {
  struct Group {
    std::size_t layers;
    recompute::CheckpointOptions options;
  };
  std::unordered_map<std::size_t, Group> by_first;
};

template <class Note>
void note(nn::Module& module, const RecomputedModule& choice) {
  if (module.attachment<Note>() != nullptr) {
    config_error("recompute of '{}' was requested twice; each part can be recomputed once", sharding::text_of(choice));
  }
  module.attach(std::make_shared<Note>(Note{choice.path}));
}

void note_group(nn::Module& list, std::size_t first, const RecomputedModule& choice) {
  auto groups = list.attachment<LayerGroups>();
  if (groups == nullptr) list.attach(groups = std::make_shared<LayerGroups>());
  const auto layers = static_cast<std::size_t>(choice.layers);
  require(first + layers <= list.children().size(), "recompute of '{}': {} layers from {} on, of {}", choice.path,
          layers, first, list.children().size());
  for (const auto& [begin, group] : groups->by_first) {
    if (first + layers <= begin || begin + group.layers <= first) continue;
    config_error("recompute of '{}' and of '{}' have layers in common; each layer can be in one group",
                 group.options.path, sharding::text_of(choice));
  }
  groups->by_first[first] = {layers,
                             {.path = fmt::format("{} and {} more layers", choice.path, layers - 1),
                              .use_reentrant = choice.use_reentrant,
                              .keep = static_cast<recompute::Keep>(choice.keep)}};
}

// M is Module or const Module.
template <class M>
M& child(M& layer, std::string_view name) {
  M* found = layer.find(name);
  require(found != nullptr, "a decoder's layer has no '{}'", name);
  return *found;
}

// The modules whose code has the activation function: the MLP, or its experts and the expert that all tokens share.
template <class M>
std::vector<M*> activation_owners(M& mlp) {
  M* experts = mlp.find("experts");
  if (experts == nullptr) return {&mlp};
  M* shared = mlp.find("shared_expert");
  if (shared == nullptr) shared = mlp.find("shared_experts");
  return shared == nullptr ? std::vector<M*>{experts} : std::vector<M*>{experts, shared};
}

// A choice's layer, and the list it is in.
template <class M>
struct Slot {
  M* list = nullptr;
  M* layer = nullptr;
  std::size_t index = 0;
  std::shared_ptr<LayerList> names = nullptr;  // null: not of a decoder

  Slot(M& model, const std::string& path) {
    const std::size_t dot = path.rfind('.');
    if (dot == std::string::npos) return;
    list = model.find(path.substr(0, dot));
    layer = model.find(path);
    if (list == nullptr || layer == nullptr) return;
    names = list->template attachment<LayerList>();
    if (names != nullptr) index = std::stoul(path.substr(dot + 1));
  }
};

std::vector<Tensor> tensors_of(const Args& args) {
  std::vector<Tensor> tensors;
  for (const Value& value : args.positional) tensors.push_back(value.tensor());
  return tensors;
}

Args args_of(const std::vector<Tensor>& tensors) { return {nn::ValueList(tensors.begin(), tensors.end()), {}}; }

}  // namespace

void apply_layer_recompute(nn::Module& model, const RecomputedModule& choice) {
  const Slot<nn::Module> at(model, choice.path);
  if (at.names == nullptr) {
    config_error(
        "recompute of '{}': only the decoder layers of this program support this kind; recompute the whole "
        "module",
        sharding::text_of(choice));
  }
  switch (choice.part) {
    case RecomputedPart::kWhole:
      return note_group(*at.list, at.index, choice);
    case RecomputedPart::kCoreAttention:
      return note<RecomputedCoreAttention>(child(*at.layer, at.names->attention), choice);
    case RecomputedPart::kActivationFunction:
      for (nn::Module* owner : activation_owners(child(*at.layer, at.names->mlp))) {
        note<RecomputedActivation>(*owner, choice);
      }
      return;
    case RecomputedPart::kNorms:
      return note<RecomputedNorms>(*at.layer, choice);
  }
}

bool has_layer_recompute(const nn::Module& model, const RecomputedModule& choice) {
  const Slot<const nn::Module> at(model, choice.path);
  if (at.names == nullptr) return false;
  switch (choice.part) {
    case RecomputedPart::kWhole: {
      const auto groups = at.list->attachment<LayerGroups>();
      return groups != nullptr && groups->by_first.contains(at.index);
    }
    case RecomputedPart::kCoreAttention:
      return child(*at.layer, at.names->attention).attachment<RecomputedCoreAttention>() != nullptr;
    case RecomputedPart::kActivationFunction:
      return recomputes_activation(*activation_owners(child(*at.layer, at.names->mlp)).front());
    case RecomputedPart::kNorms:
      return at.layer->attachment<RecomputedNorms>() != nullptr;
  }
  return false;
}

bool is_recomputed_whole(const nn::Module& model, const std::string& path) {
  for (std::size_t end = path.size(); end != std::string::npos && end > 0; end = path.rfind('.', end - 1)) {
    const nn::Module* module = model.find(path.substr(0, end));
    if (module != nullptr && recompute::is_checkpointed(*module)) return true;
  }
  const Slot<const nn::Module> at(model, path);
  const auto groups = at.names == nullptr ? nullptr : at.list->attachment<LayerGroups>();
  if (groups == nullptr) return false;
  return std::ranges::any_of(groups->by_first, [&](const auto& group) {
    return group.first <= at.index && at.index < group.first + group.second.layers;
  });
}

Value run_layers(nn::ModuleList& layers, Args args,
                 const std::function<Value(std::size_t layer, const Args& args)>& run) {
  const auto groups = layers.attachment<LayerGroups>();
  for (std::size_t i = 0; i < layers.size();) {
    const auto group = groups == nullptr ? nullptr : groups->by_first.contains(i) ? &groups->by_first.at(i) : nullptr;
    if (group == nullptr || !autograd::grad_enabled()) {
      args.positional[0] = run(i++, args);
      continue;
    }
    const auto several = [run, i, count = group->layers](Args inner) -> Value {
      for (std::size_t j = i; j < i + count; ++j) inner.positional[0] = run(j, inner);
      return inner.positional[0];
    };
    args.positional[0] = recompute::checkpointed(layers, group->options, several, args);
    i += group->layers;
  }
  return args.positional[0];
}

Tensor core_attention(const nn::Module& attention, const std::vector<Tensor>& qkv, const TensorsFn& attend) {
  const auto recomputed = attention.attachment<RecomputedCoreAttention>();
  if (recomputed == nullptr) return attend(qkv);
  const recompute::CheckpointOptions options{.path = recomputed->path + " (core attention)", .use_reentrant = false};
  return recompute::checkpointed(
      attention, options, [attend](const Args& args) -> Value { return attend(tensors_of(args)); }, args_of(qkv));
}

bool recomputes_activation(const nn::Module& owner) { return owner.attachment<RecomputedActivation>() != nullptr; }

Tensor activated(const nn::Module& owner, const std::vector<Tensor>& inputs, const TensorsFn& activation,
                 const TensorFn& consumer) {
  const auto recomputed = owner.attachment<RecomputedActivation>();
  if (recomputed == nullptr) return consumer(activation(inputs));
  return recompute::run_discarding(
      recomputed->path + " (activation function)",
      [activation](const Args& args) -> Value { return activation(tensors_of(args)); }, args_of(inputs),
      [&](const Tensor& output) -> Value { return consumer(output); });
}

Tensor normed(const nn::Module& layer, const nn::Child<nn::Module>& norm, const Tensor& x, const TensorFn& consumer) {
  const auto recomputed = layer.attachment<RecomputedNorms>();
  if (recomputed == nullptr) return consumer(norm(x));
  std::optional<offload::SavingInside> argument_of(std::in_place, *norm);
  return recompute::run_discarding(
      recomputed->path + " (norms)", [&norm](const Args& args) { return norm(args.tensor(0)); }, args_of({x}),
      [&](const Tensor& output) -> Value {
        argument_of.reset();
        return consumer(output);
      });
}

}  // namespace loom::models
