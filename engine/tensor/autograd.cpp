#include "engine/tensor/autograd.h"

#include <algorithm>
#include <utility>

#include "engine/core/error.h"
#include "engine/core/shape_text.h"
#include "engine/device/device.h"
#include "engine/kernels/fused.h"
#include "engine/tensor/tape_state.h"

namespace loom::autograd {
namespace {

class OpNode final : public Node {
 public:
  OpNode(std::string_view name, std::vector<SavedTensor> saved, BackwardFn backward)
      : name_(name), saved_(std::move(saved)), backward_(std::move(backward)) {
    if (device::Device* device = device::Device::current_or_null()) call_site_ = device->log().call_site();
  }

  std::vector<Tensor> backward(const std::vector<Tensor>& grads) override {
    check_model(backward_ != nullptr,
                "a second backward through '{}': its saved tensors are freed after the first; run the forward again, "
                "or add the losses and run one backward",
                name_);
    const NodePart* part = TapeState::current().part;
    const bool runs_again = part != nullptr && part->runs_again;
    const std::vector<Tensor> saved = unpacked(runs_again);
    const BackwardFn run = runs_again ? backward_ : std::exchange(backward_, nullptr);
    if (std::none_of(grads.begin(), grads.end(), [](const Tensor& grad) { return grad.defined(); })) return {};
    Needs needs;
    for (const Edge& edge : edges) needs.push_back(edge.node != nullptr);
    if (part != nullptr) needs = part->needs;
    if (call_site_ == 0) return run(saved, grads, needs);
    const device::CallSiteScope scope(device::Device::current().log(), call_site_);
    return run(saved, grads, needs);
  }

  void release_saved() override {
    saved_.clear();
    unpacked_.clear();
    backward_ = nullptr;
  }

  std::string_view name() const override { return name_; }

 private:
  // Each is unpacked once. Nothing but the result holds them then, unless the node runs again: an operator may
  // overwrite tensors without another owner.
  std::vector<Tensor> unpacked(bool runs_again) {
    std::vector<Tensor> tensors = std::move(unpacked_);
    unpacked_.clear();
    for (const SavedTensor& tensor : saved_) tensors.push_back(tensor.unpack());
    saved_.clear();
    if (runs_again) unpacked_ = tensors;
    return tensors;
  }

  const std::string name_;
  std::vector<SavedTensor> saved_;
  std::vector<Tensor> unpacked_;  // between the two parts of its backward
  BackwardFn backward_;
  std::int32_t call_site_ = 0;  // of forward, in the device's log
};

class IdentityNode final : public Node {
 public:
  IdentityNode(std::string_view name, std::function<void()> after) : name_(name), after_(std::move(after)) {}

  std::vector<Tensor> backward(const std::vector<Tensor>& grads) override {
    const NodePart* part = TapeState::current().part;
    if (part == nullptr || !part->is_rest) {
      check_model(after_ != nullptr, "a second backward through '{}': it runs once; run the forward again", name_);
      std::exchange(after_, nullptr)();
    }
    std::vector<Tensor> passed = grads;
    passed.resize(edges.size());
    return passed;
  }
  void release_saved() override { after_ = nullptr; }
  std::string_view name() const override { return name_; }

 private:
  const std::string name_;
  std::function<void()> after_;
};

class AccumulateGrad final : public Node {
 public:
  explicit AccumulateGrad(const Tensor& leaf) : leaf_(leaf) { sequence = kAccumulateFirst; }

  std::vector<Tensor> backward(const std::vector<Tensor>& grads) override {
    if (!grads[0].defined()) return {};
    Meta& meta = leaf_.meta_data();
    Tensor grad = grads[0];
    for (const Tensor::Hook& hook : meta.leaf_hooks) {
      if (Tensor replaced = hook(grad); replaced.defined()) grad = replaced;
    }
    check_model(grad.shape() == leaf_.shape(),
                "gradient {} of '{}' {}; a hook or a backward of your own must return the shape of the tensor",
                grad.shape(), leaf_.storage()->what(), leaf_.shape());
    // This handle and, unless a hook replaced it, the engine's buffer; more means that others see the bytes too.
    add_to(meta, grad, grad.is_same(grads[0]) ? 2 : 1);
    for (const auto& hook : meta.post_accumulate_hooks) hook(leaf_);
    return {};
  }
  std::string_view name() const override { return "AccumulateGrad"; }

 private:
  void add_to(Meta& meta, const Tensor& grad, long our_handles) const {
    if (meta.grad.defined()) {
      const Tensor& sum = meta.grad;
      require(sum.dtype() == grad.dtype() && sum.shape() == grad.shape(), "gradient {} {} added to {} {} of '{}'",
              loom::name(grad.dtype()), grad.shape(), loom::name(sum.dtype()), sum.shape(), leaf_.storage()->what());
      const device::Cost cost{static_cast<double>(sum.numel()), 2 * sum.nbytes(), sum.nbytes()};
      device::Device::current().launch(
          "grad_accumulate", cost, [&] { kernels::add(sum.dtype(), sum.numel(), sum.raw(), grad.raw(), sum.raw()); });
      sum.storage()->bump_version();
      return;
    }
    if (grad.is_owned_by(our_handles)) {
      meta.grad = grad.detach();
    } else {
      meta.grad = Tensor::empty(grad.shape(), grad.dtype(), device::MemCategory::kGradient, "gradient");
      meta.grad.copy_from(grad);
    }
    meta.grad.storage()->recategorize(device::MemCategory::kGradient);
  }

  const Tensor leaf_;
};

}  // namespace

Node::~Node() {
  // Long chains are taken apart in a loop, not by recursion.
  std::vector<std::shared_ptr<Node>> pending;
  for (Edge& edge : edges) pending.push_back(std::move(edge.node));
  while (!pending.empty()) {
    std::shared_ptr<Node> node = std::move(pending.back());
    pending.pop_back();
    if (node == nullptr || node.use_count() > 1) continue;
    for (Edge& edge : node->edges) pending.push_back(std::move(edge.node));
    node->edges.clear();
  }
}

Edge gradient_edge(const Tensor& tensor) {
  if (!tensor.requires_grad()) return {};
  Meta& meta = tensor.meta_data();
  if (meta.node) return {meta.node, meta.output};
  std::shared_ptr<Node> accumulator = meta.accumulator.lock();
  if (!accumulator) {
    accumulator = std::make_shared<AccumulateGrad>(tensor);
    meta.accumulator = accumulator;
  }
  return {accumulator, 0};
}

SavedTensor::SavedTensor(const Tensor& tensor) {
  if (!tensor.defined()) return;
  TapeState& state = TapeState::current();
  if (!state.saved_hooks.empty()) {
    const SavedTensorHooks hooks = state.saved_hooks.back();
    packed_ = hooks.pack(tensor.detach());
    unpack_ = hooks.unpack;
    return;
  }
  tensor_ = tensor.detach();
  version_ = tensor_.storage()->version();
}

Tensor SavedTensor::unpack() const {
  if (unpack_) return unpack_(packed_);
  if (!tensor_.defined()) return {};
  check_model(
      tensor_.storage()->version() == version_,
      "'{}' was saved for backward at version {} and is at version {}: it was written to in between; write to a copy",
      tensor_.storage()->what(), version_, tensor_.storage()->version());
  return tensor_;
}

bool grad_enabled() { return TapeState::current().grad_enabled; }

GradMode::GradMode(bool on)
    : previous_(TapeState::current().grad_enabled), previous_deferred_(TapeState::current().grad_deferred) {
  TapeState::current().grad_enabled = on;
  TapeState::current().grad_deferred = false;
}
GradMode::~GradMode() {
  TapeState::current().grad_enabled = previous_;
  TapeState::current().grad_deferred = previous_deferred_;
}

GradDeferred::GradDeferred() {
  TapeState& state = TapeState::current();
  require(state.grad_enabled, "a graph is deferred while the grad mode is off");
  state.grad_enabled = false;
  state.grad_deferred = true;
}
GradDeferred::~GradDeferred() {
  TapeState::current().grad_enabled = true;
  TapeState::current().grad_deferred = false;
}

bool backward_expected() { return TapeState::current().grad_enabled || TapeState::current().grad_deferred; }

SavedTensorHooksScope::SavedTensorHooksScope(SavedTensorHooks hooks) {
  TapeState::current().saved_hooks.push_back(std::move(hooks));
}
SavedTensorHooksScope::~SavedTensorHooksScope() { TapeState::current().saved_hooks.pop_back(); }

void check_inputs(std::string_view op, std::span<const Tensor> inputs) {
  for (const Tensor& input : inputs) {
    if (!input.defined()) continue;
    if (const auto& guard = input.meta_data().guard) guard->check(op);
  }
}

bool will_record(std::span<const Tensor> inputs) {
  return grad_enabled() && std::any_of(inputs.begin(), inputs.end(), [](const Tensor& t) { return t.requires_grad(); });
}

namespace {

void attach(const std::shared_ptr<Node>& node, std::span<const Tensor> inputs, std::span<const Tensor> outputs) {
  node->sequence = TapeState::current().next_sequence++;
  for (const Tensor& input : inputs) node->edges.push_back(gradient_edge(input));
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    Meta& meta = outputs[i].meta_data();
    meta.node = node;
    meta.output = static_cast<int>(i);
  }
}

}  // namespace

Recording::Recording(std::string_view name, std::vector<Tensor> inputs, const std::vector<Tensor>& saved)
    : name_(name), inputs_(std::move(inputs)) {
  check_inputs(name, inputs_);
  records_ = will_record(inputs_);
  if (!records_) return;
  kept_.reserve(saved.size());
  for (const Tensor& tensor : saved) kept_.emplace_back(tensor);
}

void Recording::finish(const std::vector<Tensor>& outputs, BackwardFn backward) {
  if (records_) attach(std::make_shared<OpNode>(name_, std::move(kept_), std::move(backward)), inputs_, outputs);
}

void record(std::string_view name, std::vector<Tensor> inputs, std::vector<Tensor> saved, std::vector<Tensor> outputs,
            BackwardFn backward) {
  Recording(name, std::move(inputs), saved).finish(outputs, std::move(backward));
}

std::vector<Tensor> identity_with_backward(std::string_view name, const std::vector<Tensor>& inputs,
                                           std::function<void()> after) {
  if (!will_record(inputs)) return inputs;
  std::vector<Tensor> results = inputs;
  std::vector<Tensor> recorded;
  std::vector<Tensor> outputs;
  for (Tensor& result : results) {
    if (!result.requires_grad()) continue;
    recorded.push_back(result);
    result = result.detach();
    outputs.push_back(result);
  }
  attach(std::make_shared<IdentityNode>(name, std::move(after)), recorded, outputs);
  return results;
}

}  // namespace loom::autograd
