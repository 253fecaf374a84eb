// Module: a named tree of layers with parameters and buffers.
//
// Parameters  are declared with a shape, a dtype and a rule for their initial values, and start on the meta device:
//             nothing is allocated until they are materialised (init.h), whole or as the rows a rank owns. A model's
//             code reads `slot.value`; who shards the model puts other tensors there. Two slots that hold the same
//             tensor are tied.
// Forward     calls go through operator(), which runs pre-hooks, forward, post-hooks. Pre-hooks may replace the
//             arguments, post-hooks the result.
// Around      wrap_call() puts a wrapper around what a call does at that moment; hooks registered later run outside it.
//             So the order in which recompute and sharding are applied is the order in which they enclose each other,
//             and no path changes.
// Names       paths as in Hugging Face: "model.layers.0.mlp.gate_proj.weight"; the root's path is "".
// Threads     the rank's host thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <typeindex>
#include <unordered_map>
#include <utility>
#include <vector>

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

// Where a module keeps one parameter.
struct ParamSlot {
  std::string name;
  Tensor value;  // the whole parameter, or the rows this rank owns, or what a wrapper put there
  Init init;
  Shape global_shape;          // of the whole parameter
  std::int64_t row_begin = 0;  // first global row of `value` while it holds this rank's rows
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
    (args.positional.emplace_back(std::forward<T>(arguments)), ...);
    return call(std::move(args));
  }
  Value call(Args args);

  // --- the tree ---
  const std::vector<std::pair<std::string, std::shared_ptr<Module>>>& children() const { return children_; }
  std::vector<std::unique_ptr<ParamSlot>>& own_parameters() { return parameters_; }
  std::vector<std::pair<std::string, Tensor>>& own_buffers() { return buffers_; }
  // The module at a path; null when there is none. "" is this module.
  Module* find(std::string_view path);
  // Pre-order, in registration order, each module once, with paths relative to this one (this one first, as "").
  std::vector<std::pair<std::string, Module*>> named_modules();
  // Every slot with its path; tied slots appear each.
  std::vector<std::pair<std::string, ParamSlot*>> named_slots();
  // Every parameter once, under its first path.
  std::vector<std::pair<std::string, Tensor>> named_parameters();
  std::vector<Tensor> parameters();
  std::int64_t parameter_count();

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

  // Runs what a call did before the wrapper came: the hooks registered until then and forward. May be called any number
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
  void register_buffer(std::string name, Tensor buffer);
  template <class M>
  M& register_module(std::string name, std::shared_ptr<M> child) {
    M& reference = *child;
    add_child(std::move(name), std::move(child));
    return reference;
  }

 private:
  // What a call passes through, innermost first: layer 0 ends in forward, every other one in a wrapper around the layer
  // before it.
  struct CallLayer {
    std::vector<PreHook> pre_hooks;
    std::vector<PostHook> post_hooks;
    CallWrapper wrapper;  // null in layer 0
  };

  Value call_layer(std::size_t index, Args args);
  void add_child(std::string name, std::shared_ptr<Module> child);

  std::vector<std::pair<std::string, std::shared_ptr<Module>>> children_;
  std::vector<std::unique_ptr<ParamSlot>> parameters_;
  std::vector<std::pair<std::string, Tensor>> buffers_;
  std::unordered_map<std::type_index, std::shared_ptr<void>> attachments_;
  std::vector<CallLayer> call_layers_{1};
};

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
