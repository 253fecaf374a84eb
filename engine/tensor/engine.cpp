// Backward: dependencies are counted first, then ready nodes run, largest sequence number first.
#include <algorithm>
#include <queue>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "engine/core/error.h"
#include "engine/kernels/fused.h"
#include "engine/tensor/autograd.h"
#include "engine/tensor/tape_state.h"

namespace loom::autograd {
namespace {

struct Ready {
  std::shared_ptr<Node> node;
  std::uint64_t arrival;  // equal sequence numbers: first come, first served

  bool operator<(const Ready& other) const {
    if (node->sequence != other.node->sequence) return node->sequence < other.node->sequence;
    return arrival > other.arrival;
  }
};

class Backward final : public GradientSums {
 public:
  explicit Backward(std::span<const Root> roots) {
    for (const Root& root : roots) put_root(root);
    count_dependencies();
    for (const std::shared_ptr<Node>& node : roots_) {
      if (dependencies_[node.get()] == 0) push(node);
    }
    roots_.clear();
  }

  void run() {
    while (!ready_.empty()) {
      const std::shared_ptr<Node> node = ready_.top().node;
      ready_.pop();
      run_node(node);
    }
  }

  // Not where a second edge of the node leads to the same sum: the order of additions would change.
  Tensor take(std::size_t input, const Tensor& gradient) override {
    const std::vector<Edge>& edges = running_->edges;
    const Edge& edge = edges.at(input);
    const auto meets = [&](const Edge& other) { return other.node == edge.node && other.output == edge.output; };
    if (!edge.node || std::ranges::count_if(edges, meets) != 1) return {};
    const auto found = buffers_.find(edge.node.get());
    if (found == buffers_.end() || found->second.size() <= static_cast<std::size_t>(edge.output)) return {};
    const Tensor& sum = found->second[static_cast<std::size_t>(edge.output)];
    if (!sum.defined() || sum.dtype() != gradient.dtype() || sum.shape() != gradient.shape()) return {};
    if (!sum.is_owned_by(1)) return {};
    is_added_[input] = true;
    return sum;
  }

  Tensor take_away(std::size_t input) override {
    const Edge& edge = running_->edges.at(input);
    const auto found = buffers_.find(edge.node.get());
    if (found == buffers_.end() || found->second.size() <= static_cast<std::size_t>(edge.output)) return {};
    return std::exchange(found->second[static_cast<std::size_t>(edge.output)], {});
  }

 private:
  void put_root(const Root& root) {
    const Edge edge = gradient_edge(root.result);
    check_model(edge.node != nullptr,
                "backward from a tensor that requires no gradient: none of its inputs requires one, or the grad "
                "mode was off");
    check_model(root.grad.defined() || root.result.numel() == 1,
                "backward from a tensor with {} elements needs its gradient; give one, or take the mean first",
                root.result.numel());
    put_gradient(edge, root.grad.defined() ? root.grad : Tensor::full(root.result.shape(), root.result.dtype(), 1.0));
    if (std::ranges::find(roots_, edge.node) == roots_.end()) roots_.push_back(edge.node);
  }

  void count_dependencies() {
    std::vector<Node*> stack;
    for (const std::shared_ptr<Node>& root : roots_) stack.push_back(root.get());
    std::unordered_set<Node*> seen(stack.begin(), stack.end());
    while (!stack.empty()) {
      Node* node = stack.back();
      stack.pop_back();
      for (const Edge& edge : node->edges) {
        if (!edge.node) continue;
        ++dependencies_[edge.node.get()];
        if (seen.insert(edge.node.get()).second) stack.push_back(edge.node.get());
      }
    }
  }

  void run_node(const std::shared_ptr<Node>& node) {
    std::vector<Tensor> grads = std::move(buffers_[node.get()]);
    buffers_.erase(node.get());
    if (grads.empty()) grads.resize(1);
    run_hooks(*node, grads);
    running_ = node.get();
    is_added_.assign(node->edges.size(), false);
    std::vector<Tensor> next = node->backward(grads);
    grads.clear();
    node->release_saved();
    next.resize(node->edges.size());
    for (std::size_t i = 0; i < node->edges.size(); ++i) {
      const Edge& edge = node->edges[i];
      if (!edge.node) continue;
      is_added_[i] ? count_added_gradient(edge, next[i]) : put_gradient(edge, next[i]);
      next[i] = Tensor{};
      if (--dependencies_[edge.node.get()] == 0) push(edge.node);
    }
  }

  static void run_hooks(Node& node, std::vector<Tensor>& grads) {
    for (std::size_t output = 0; output < node.hooks.size() && output < grads.size(); ++output) {
      for (const Tensor::Hook& hook : node.hooks[output]) {
        if (!grads[output].defined()) continue;
        if (Tensor replaced = hook(grads[output]); replaced.defined()) grads[output] = replaced;
      }
    }
  }

  // The sum of what arrived at one output of a node, in order of arrival.
  void put_gradient(const Edge& edge, const Tensor& grad) {
    std::vector<Tensor>& buffer = buffers_[edge.node.get()];
    if (buffer.size() <= static_cast<std::size_t>(edge.output))
      buffer.resize(static_cast<std::size_t>(edge.output) + 1);
    if (!grad.defined()) return;
    Tensor& sum = buffer[static_cast<std::size_t>(edge.output)];
    if (!sum.defined()) {
      sum = grad;
      return;
    }
    require(sum.dtype() == grad.dtype() && sum.shape() == grad.shape(), "gradients {} {} and {} {} meet at '{}'",
            name(sum.dtype()), to_string(sum.shape()), name(grad.dtype()), to_string(grad.shape()), edge.node->name());
    const Tensor target = sum.is_owned_by(1) ? sum : Tensor::empty(sum.shape(), sum.dtype());
    launch_addition(sum, [&] { kernels::add(sum.dtype(), sum.numel(), sum.raw(), grad.raw(), target.raw()); });
    sum = target;
  }

  // The operator's kernel added it.
  void count_added_gradient(const Edge& edge, const Tensor& grad) {
    const Tensor& sum = buffers_.at(edge.node.get()).at(static_cast<std::size_t>(edge.output));
    require(grad.defined() && sum.is_owned_by(1), "'{}' keeps the gradient sum that it was given to add to",
            running_->name());
    launch_addition(sum, [] {});
  }

  template <class Body>
  static void launch_addition(const Tensor& sum, Body body) {
    const device::Cost cost{static_cast<double>(sum.numel()), 2 * sum.nbytes(), sum.nbytes()};
    device::Device::current().launch("grad_add", cost, body);
  }

  void push(const std::shared_ptr<Node>& node) { ready_.push({node, arrivals_++}); }

  std::vector<std::shared_ptr<Node>> roots_;  // each once, until they are in the queue
  std::priority_queue<Ready> ready_;
  std::uint64_t arrivals_ = 0;
  std::unordered_map<Node*, int> dependencies_;
  std::unordered_map<Node*, std::vector<Tensor>> buffers_;
  const Node* running_ = nullptr;
  std::vector<bool> is_added_;  // by edge of the node that runs
};

// The innermost task while it runs, taken off also when backward throws.
class TaskScope {
 public:
  explicit TaskScope(GradientSums& sums) {
    TapeState& state = TapeState::current();
    state.tasks.push_back({state.next_task++, &sums, {}});
  }
  ~TaskScope() { TapeState::current().tasks.pop_back(); }
  TaskScope(const TaskScope&) = delete;
  TaskScope& operator=(const TaskScope&) = delete;
};

}  // namespace

void backward(const Tensor& loss, const Tensor& grad) {
  const Root root{loss, grad};
  backward({&root, 1});
}

void backward(std::span<const Root> roots) {
  const NoGrad no_grad;
  Backward graph(roots);
  const TaskScope task(graph);
  graph.run();
  // A callback may queue another.
  for (std::size_t i = 0; i < TapeState::current().tasks.back().callbacks.size(); ++i) {
    const std::function<void()> callback = TapeState::current().tasks.back().callbacks[i];
    callback();
  }
}

void queue_callback(std::function<void()> callback) {
  TapeState& state = TapeState::current();
  require(!state.tasks.empty(), "a callback was queued outside backward");
  state.tasks.back().callbacks.push_back(std::move(callback));
}

Tensor add_gradient_to(std::size_t input, const Tensor& gradient) {
  const TapeState& state = TapeState::current();
  require(!state.tasks.empty(), "a gradient is added outside backward");
  return state.tasks.back().sums->take(input, gradient);
}

Tensor take_gradient_sum(std::size_t input) {
  const TapeState& state = TapeState::current();
  require(!state.tasks.empty(), "a gradient sum is taken outside backward");
  return state.tasks.back().sums->take_away(input);
}

bool in_backward() { return !TapeState::current().tasks.empty(); }

std::uint64_t graph_task_id() {
  const TapeState& state = TapeState::current();
  return state.tasks.empty() ? 0 : state.tasks.back().id;
}

}  // namespace loom::autograd
