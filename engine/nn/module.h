// Module: a named tree of layers with parameters and buffers.
//
// Parameters  are declared with a shape, a dtype and a rule for their initial values, and start on the meta device:
//             nothing is allocated until they are materialised (init.h), whole or as the box a rank owns. A model's
//             code reads `slot.value`; sharding puts other tensors there. Two slots that hold the same
//             tensor are tied.
// Forward     calls go through operator(), which runs pre-hooks, forward, post-hooks. Pre-hooks may replace the
//             arguments, post-hooks the result.
// Around      wrap_call() puts a wrapper around the present call; hooks registered later run outside it. So the order
//             in which recompute and sharding are applied is the order in which they enclose each other, and no path
//             changes.
// Names       paths as in Hugging Face: "model.layers.0.mlp.gate_proj.weight"; the root's path is "".
// Children    a parent's code holds them as Child<M>, which follows a replacement (replace_child).
// Threads     the rank's host thread.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <typeindex>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "engine/nn/shard_spec.h"
#include "engine/nn/value.h"

namespace loom::nn {

// How a parameter's first values are drawn; each element from its global index (see init.h).
struct Init {
  enum class Kind : std::uint8_t { kNormal, kOnes, kZeros, kConstant };
  Kind kind = Kind::kNormal;
  double std = 0.02;
  double value = 0;  // kConstant

  static Init normal(double std) { return {Kind::kNormal, std, 0}; }
  static Init ones() { return {Kind::kOnes, 0, 0}; }
  static Init zeros() { return {Kind::kZeros, 0, 0}; }
  static Init constant(double value) { return {Kind::kConstant, 0, value}; }
};

// Whose tensor a slot holds.
enum class SlotHolds : std::uint8_t {
  kOwn,      // the module's own
  kShard,    // this rank's part of a parameter that a wrapper has cut
  kGathered  // a copy that a wrapper has gathered and takes back: no place to write values or to save them from
};

// Where a module keeps one parameter.
struct ParamSlot {
  std::string name;
  Tensor value;  // the whole parameter, or the box this rank owns, or a wrapper's tensor
  Init init;
  ShardSpec shard;  // which box of the parameter `value` is
  SlotHolds holds = SlotHolds::kOwn;

  LocalTensor local() const { return {value, shard}; }
};

// One tensor of a module that is not a parameter.
struct Buffer {
  std::string name;
  Tensor value;
  bool persistent = false;  // part of the state dict
};

class Module;

// A child as its parent's code holds it: always the module that is in the tree now. Calls go to that module; `->`
// and `*` give it as the class it was registered with, ConfigError when a module of another class has taken its place.
// A default-constructed Child refers to no module. It lives as long as its parent.
template <class M>
class Child {
 public:
  Child() = default;
  template <class D>
  requires std::derived_from<D, M> Child(const Child<D>& other)
      : parent_(other.parent_), index_(other.index_) {}  // NOLINT: as references convert

  template <class... T>
  Value operator()(T&&... arguments) const;
  M& operator*() const;
  M* operator->() const { return &**this; }
  explicit operator bool() const { return parent_ != nullptr; }
  // A reference that stays behind when the child is replaced: replace_child() refuses from now on.
  operator M&() const;  // NOLINT: as references convert

 private:
  friend class Module;
  template <class>
  friend class Child;
  Child(Module& parent, std::size_t index) : parent_(&parent), index_(index) {}

  Module* parent_ = nullptr;
  std::size_t index_ = 0;
};

class Module {
 public:
  Module() = default;
  virtual ~Module() = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  // The class's name as users write it ("Qwen2DecoderLayer").
  virtual std::string_view type_name() const = 0;
  // False for containers (ModuleList): they cannot be called or wrapped.
  virtual bool has_forward() const { return true; }

  // Calls the module with positional arguments.
  template <class... T>
  Value operator()(T&&... arguments) {
    Args args;
    (args.add(std::forward<T>(arguments)), ...);
    return call(std::move(args));
  }
  Value call(Args args);

  // --- the tree ---
  const std::vector<std::pair<std::string, std::shared_ptr<Module>>>& children() const { return children_; }
  std::vector<std::unique_ptr<ParamSlot>>& own_parameters() { return parameters_; }
  std::vector<Buffer>& own_buffers() { return buffers_; }
  const std::vector<Buffer>& own_buffers() const { return buffers_; }
  // The module at a path; null when there is none. "" is this module.
  Module* find(std::string_view path);
  const Module* find(std::string_view path) const;
  // Pre-order, in registration order, each module once, with paths relative to this one (this one first, as "").
  std::vector<std::pair<std::string, Module*>> named_modules();
  std::vector<std::pair<std::string, const Module*>> named_modules() const;
  // Every slot with its path; tied slots appear each.
  std::vector<std::pair<std::string, ParamSlot*>> named_slots();
  std::vector<std::pair<std::string, const ParamSlot*>> named_slots() const;
  // Every parameter once, under its first path.
  std::vector<std::pair<std::string, Tensor>> named_parameters() const;
  std::vector<Tensor> parameters() const;
  std::int64_t parameter_count() const;

  // Whether this module trains; true at first. train() and eval() set it here and below. Only dropout differs.
  bool training() const { return training_; }
  void train(bool on = true);
  void eval() { train(false); }

  // Replaces the module at `path`; name and order stay. A module that occurs at several places is replaced at all of
  // them. Call it on the root: a parameter of the replaced module that is tied to a parameter outside stays tied, in
  // the replacement's slot of the same path and shape, unless the replacement holds that parameter anyway. Returns the
  // replaced module.
  //
  // Throws   ConfigError, with nothing changed: no module at `path` (the nearest is named); it or one below is sharded,
  //          recomputed or has hooks; its parent holds it by reference, not as Child; a tie would end.
  std::shared_ptr<Module> replace_child(std::string_view path, std::shared_ptr<Module> replacement);

  // Something a wrapper keeps with the module, one of each type; null until set.
  template <class T>
  std::shared_ptr<T> attachment() const {
    const auto found = attachments_.find(std::type_index(typeid(T)));
    return found == attachments_.end() ? nullptr : std::static_pointer_cast<T>(found->second);
  }
  template <class T>
  void attach(std::shared_ptr<T> attached) {
    attachments_[std::type_index(typeid(T))] = std::move(attached);
  }

  // --- hooks, in registration order; prepend puts one first ---
  using PreHook = std::function<void(Module&, Args&)>;
  using PostHook = std::function<Value(Module&, Value)>;
  void register_pre_hook(PreHook hook, bool prepend = false);
  void register_post_hook(PostHook hook);

  // Runs the call as it was before the wrapper: the hooks registered until then and forward. May be called any number
  // of times while the module lives, also from backward.
  using Run = std::function<Value(Args)>;
  using CallWrapper = std::function<Value(const Run& inner, Args args)>;
  void wrap_call(CallWrapper wrapper);

 protected:
  virtual Value forward(const Args& args) = 0;

  // References stay valid for the module's life.
  ParamSlot& register_parameter(std::string name, const Shape& shape, Init init, DType dtype = DType::kF32);
  // A slot that shares the parameter of another one.
  ParamSlot& register_tied(std::string name, const ParamSlot& other);
  // A persistent buffer is part of the state dict (state_dict.h); others are made again from the configuration.
  void register_buffer(std::string name, Tensor buffer, bool persistent = false);
  template <class M>
  Child<M> register_module(std::string name, std::shared_ptr<M> child) {
    add_child(std::move(name), std::move(child));
    return {*this, children_.size() - 1};
  }

 private:
  // The layers of a call, innermost first: layer 0 ends in forward, every other layer in a wrapper around the layer
  // before it.
  struct CallLayer {
    std::vector<PreHook> pre_hooks;
    std::vector<PostHook> post_hooks;
    CallWrapper wrapper;  // null in layer 0
  };

  template <class>
  friend class Child;

  Value call_layer(std::size_t index, Args args);
  // Whether recompute, sharding or another user's hooks wrap it.
  bool is_wrapped() const;
  void add_child(std::string name, std::shared_ptr<Module> child);

  std::vector<std::pair<std::string, std::shared_ptr<Module>>> children_;
  std::vector<std::unique_ptr<ParamSlot>> parameters_;
  std::unordered_set<std::size_t> held_by_reference_;  // indices of children
  std::vector<Buffer> buffers_;
  std::unordered_map<std::type_index, std::shared_ptr<void>> attachments_;
  std::vector<CallLayer> call_layers_{1};
  bool training_ = true;
};

template <class M>
template <class... T>
Value Child<M>::operator()(T&&... arguments) const {
  return (*parent_->children_[index_].second)(std::forward<T>(arguments)...);
}

// Throws the error of a child that is not of the class its parent's code expects.
[[noreturn]] void raise_replaced_child(const Module& parent, std::string_view name, const Module& child);

template <class M>
M& Child<M>::operator*() const {
  const auto& [name, child] = parent_->children_[index_];
  auto* typed = dynamic_cast<M*>(child.get());
  if (typed == nullptr) raise_replaced_child(*parent_, name, *child);
  return *typed;
}

template <class M>
Child<M>::operator M&() const {
  parent_->held_by_reference_.insert(index_);
  return **this;
}

// "prefix.name", or "name" under the root.
std::string join_path(std::string_view prefix, std::string_view name);

// A numbered container.
class ModuleList final : public Module {
 public:
  std::string_view type_name() const override { return "ModuleList"; }
  bool has_forward() const override { return false; }
  void append(std::shared_ptr<Module> module);
  std::size_t size() const { return children().size(); }
  Module& operator[](std::size_t i) const { return *children()[i].second; }

 protected:
  Value forward(const Args& args) override;
};

}  // namespace loom::nn
