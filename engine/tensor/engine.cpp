// Backward: dependencies are counted first, then ready nodes run, largest sequence number first. In two parts
// (split_backward.h) an edge belongs to the first if it leads to an input, else to the second; a node with edges of
// both runs in both. Captured gradients (gradients_of.h) are those of the first part without the second.
#include <algorithm>
#include <memory>
#include <queue>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "engine/core/error.h"
#include "engine/core/shape_text.h"
#include "engine/kernels/fused.h"
#include "engine/tensor/autograd.h"
#include "engine/tensor/gradients_of.h"
#include "engine/tensor/split_backward.h"
#include "engine/tensor/tape_state.h"

namespace loom::autograd {

struct RestOfBackward::Parts {
  // What a backward of inputs leaves to the backward of the rest: a node, the gradients of its outputs, and whether it
  // has run.
  struct Deferred {
    std::shared_ptr<Node> node;
    std::vector<Tensor> grads;
    bool has_run = false;
  };
  using Nodes = std::unordered_set<const Node*>;

  std::vector<Deferred> deferred;
  Nodes leading;  // to inputs
};

namespace {

using Deferred = RestOfBackward::Parts::Deferred;
using Nodes = RestOfBackward::Parts::Nodes;

struct Ready {
  std::shared_ptr<Node> node;
  std::uint64_t arrival;  // equal sequence numbers: first come, first served

  bool operator<(const Ready& other) const {
    if (node->sequence != other.node->sequence) return node->sequence < other.node->sequence;
    return arrival > other.arrival;
  }
};

// The nodes below `roots` from which an edge leads to one of `inputs`, and these.
Nodes nodes_to(std::span<const Root> roots, std::span<const Tensor> inputs) {
  Nodes leading;
  for (const Tensor& input : inputs) leading.insert(gradient_edge(input).node.get());
  Nodes seen;
  std::vector<const Node*> nodes;
  for (const Root& root : roots) nodes.push_back(gradient_edge(root.result).node.get());
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    for (const Edge& edge : nodes[i]->edges) {
      if (edge.node && seen.insert(edge.node.get()).second) nodes.push_back(edge.node.get());
    }
  }
  // An operator's inputs are older than the operator; leaves lead nowhere.
  std::ranges::sort(nodes, {}, [](const Node* node) { return node->sequence; });
  for (const Node* node : nodes) {
    const auto leads = [&](const Edge& edge) { return edge.node && leading.contains(edge.node.get()); };
    if (std::ranges::any_of(node->edges, leads)) leading.insert(node);
  }
  return leading;
}

enum class Part : std::uint8_t { kWhole, kInputs, kRest, kCaptured };

// A tensor whose gradient is captured where its node, or its accumulator, would run.
struct Capture {
  int output = 0;  // of the node
  std::size_t input = 0;
};

// A gradient that shares its bytes with nothing else. `handles`: those of the caller.
Tensor own_gradient(const Tensor& grad, long handles) {
  Tensor own = grad.is_owned_by(handles)
                   ? grad.detach()
                   : Tensor::empty(grad.shape(), grad.dtype(), device::MemCategory::kGradient, "gradient");
  if (own.storage() != grad.storage()) own.copy_from(grad);
  own.storage()->recategorize(device::MemCategory::kGradient);
  return own;
}

class Backward final : public GradientSums {
 public:
  explicit Backward(std::span<const Root> roots) {
    for (const Root& root : roots) put_root(root);
    begin();
  }

  // The part that leads to `inputs`.
  Backward(std::span<const Root> roots, std::span<const Tensor> inputs)
      : part_(Part::kInputs), leading_(nodes_to(roots, inputs)) {
    for (const Root& root : roots) put_root(root);
    begin();
  }

  // The same, whose gradients go to `captured`, one for each input, and nowhere else.
  Backward(std::span<const Root> roots, std::span<const Tensor> inputs, std::vector<Tensor>& captured)
      : part_(Part::kCaptured), inputs_(inputs), captured_(&captured) {
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      Edge edge = gradient_edge(inputs[i]);
      captures_.emplace(edge.node.get(), Capture{edge.output, i});
      kept_.push_back(std::move(edge.node));
    }
    leading_ = nodes_to(roots, inputs);
    for (const Root& root : roots) put_root(root);
    begin();
  }

  // The rest.
  Backward(std::vector<Deferred> deferred, Nodes leading) : part_(Part::kRest), leading_(std::move(leading)) {
    for (Deferred& one : deferred) {
      buffers_[one.node.get()] = std::move(one.grads);
      if (one.has_run) have_run_.insert(one.node.get());
      roots_.push_back(std::move(one.node));
    }
    begin();
  }

  std::vector<Deferred> take_deferred() { return std::move(deferred_); }
  Nodes take_leading() { return std::move(leading_); }

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
  void begin() {
    count_dependencies();
    for (const std::shared_ptr<Node>& node : roots_) {
      if (dependencies_[node.get()] == 0) push(node);
    }
    roots_.clear();
  }

  bool leads_to_input(const Node* node) const { return leading_.contains(node); }

  // Whether the edge belongs to this part.
  bool is_taken(const Edge& edge) const {
    return edge.node && (part_ == Part::kWhole || leads_to_input(edge.node.get()) == (part_ != Part::kRest));
  }

  // Whether an edge of the node belongs to another part.
  bool leaves_edges(const Node& node) const {
    return std::ranges::any_of(node.edges, [this](const Edge& edge) { return edge.node && !is_taken(edge); });
  }

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
        if (!is_taken(edge)) continue;
        ++dependencies_[edge.node.get()];
        if (seen.insert(edge.node.get()).second) stack.push_back(edge.node.get());
      }
    }
  }

  void run_node(const std::shared_ptr<Node>& node) {
    std::vector<Tensor> grads = std::move(buffers_[node.get()]);
    buffers_.erase(node.get());
    if (grads.empty()) grads.resize(1);
    if (part_ == Part::kInputs && !leads_to_input(node.get())) return deferred_.push_back({node, std::move(grads)});
    if (part_ == Part::kCaptured && !leads_to_input(node.get())) return;
    const bool is_rest = have_run_.contains(node.get());
    if (!is_rest) run_hooks(*node, grads);
    const bool is_split = part_ == Part::kInputs && leaves_edges(*node);
    if (is_split) deferred_.push_back({node, grads, /*has_run=*/true});
    if (part_ == Part::kCaptured && !capture(*node, grads)) return;
    running_ = node.get();
    is_added_.assign(node->edges.size(), false);
    std::vector<Tensor> next = run_part(*node, grads, is_rest, is_split);
    grads.clear();
    if (!is_split) node->release_saved();
    next.resize(node->edges.size());
    for (std::size_t i = 0; i < node->edges.size(); ++i) {
      const Edge& edge = node->edges[i];
      if (!is_taken(edge)) {
        next[i] = Tensor{};
        continue;
      }
      is_added_[i] ? count_added_gradient(edge, next[i]) : put_gradient(edge, next[i]);
      next[i] = Tensor{};
      if (--dependencies_[edge.node.get()] == 0) push(edge.node);
    }
  }

  // Takes the gradients of the inputs that belong to the node. Whether it leads on to others.
  bool capture(const Node& node, const std::vector<Tensor>& grads) {
    const auto [begin, end] = captures_.equal_range(&node);
    for (auto found = begin; found != end; ++found) {
      const auto [output, input] = found->second;
      if (grads.size() <= static_cast<std::size_t>(output) || !grads[static_cast<std::size_t>(output)].defined())
        continue;
      Tensor grad = grads[static_cast<std::size_t>(output)];
      for (const Tensor::Hook& hook : inputs_[input].meta_data().leaf_hooks) {
        if (Tensor replaced = hook(grad); replaced.defined()) grad = replaced;
      }
      check_model(grad.shape() == inputs_[input].shape(),
                  "gradient {} of '{}' {}; a hook or a backward of your own must return the shape of the tensor",
                  grad.shape(), inputs_[input].storage()->what(), inputs_[input].shape());
      const bool is_replaced = !grad.is_same(grads[static_cast<std::size_t>(output)]);
      (*captured_)[input] = own_gradient(grad, is_replaced ? 1 : 2);
    }
    return std::ranges::any_of(node.edges, [this](const Edge& edge) { return is_taken(edge); });
  }

  std::vector<Tensor> run_part(Node& node, const std::vector<Tensor>& grads, bool is_rest, bool runs_again) const {
    NodePart part{.needs = {}, .is_rest = is_rest, .runs_again = runs_again};
    const bool is_part = is_rest || leaves_edges(node);
    for (const Edge& edge : node.edges) part.needs.push_back(is_taken(edge));
    // A node may run a backward of its own.
    const NodePart* const outer = std::exchange(TapeState::current().part, is_part ? &part : nullptr);
    const auto restore = [outer](void*) { TapeState::current().part = outer; };
    const std::unique_ptr<void, decltype(restore)> restored(&part, restore);
    return node.backward(grads);
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
            name(sum.dtype()), sum.shape(), name(grad.dtype()), grad.shape(), edge.node->name());
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

  const Part part_ = Part::kWhole;
  Nodes leading_;                             // to inputs
  Nodes have_run_;                            // in the first part
  std::vector<Deferred> deferred_;            // to the second part
  std::vector<std::shared_ptr<Node>> roots_;  // each once, until they are in the queue
  std::priority_queue<Ready> ready_;
  std::uint64_t arrivals_ = 0;
  std::unordered_map<Node*, int> dependencies_;
  std::unordered_map<Node*, std::vector<Tensor>> buffers_;
  const Node* running_ = nullptr;
  std::vector<bool> is_added_;                              // by edge of the node that runs
  std::span<const Tensor> inputs_;                          // kCaptured, with the next two
  std::unordered_multimap<const Node*, Capture> captures_;  // by node
  std::vector<Tensor>* captured_ = nullptr;                 // by input
  std::vector<std::shared_ptr<Node>> kept_;                 // behind the inputs, while pointers to them are compared
};

// The innermost task while it runs, taken off also when backward throws.
class TaskScope {
 public:
  TaskScope(GradientSums& sums, bool is_captured) {
    TapeState& state = TapeState::current();
    state.tasks.push_back({state.next_task++, &sums, {}, is_captured});
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

namespace {

void run(Backward& graph, bool is_captured = false) {
  const TapeState& state = TapeState::current();
  check_model(is_captured || state.tasks.empty() || !state.tasks.back().is_captured,
              "a backward that accumulates gradients runs inside value_and_grad(), which accumulates none: reentrant "
              "recompute does so; use recompute with use_reentrant false, or none");
  const NoGrad no_grad;
  const TaskScope task(graph, is_captured);
  graph.run();
  // A callback may queue another.
  for (std::size_t i = 0; i < TapeState::current().tasks.back().callbacks.size(); ++i) {
    const std::function<void()> callback = TapeState::current().tasks.back().callbacks[i];
    callback();
  }
}

}  // namespace

void backward(std::span<const Root> roots) {
  Backward graph(roots);
  run(graph);
}

RestOfBackward::RestOfBackward(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
RestOfBackward::RestOfBackward() = default;
RestOfBackward::RestOfBackward(RestOfBackward&&) noexcept = default;
RestOfBackward& RestOfBackward::operator=(RestOfBackward&&) noexcept = default;
RestOfBackward::~RestOfBackward() = default;

RestOfBackward backward_of_inputs(std::span<const Root> roots, std::span<const Tensor> inputs) {
  Backward graph(roots, inputs);
  run(graph);
  return RestOfBackward(
      std::make_unique<RestOfBackward::Parts>(RestOfBackward::Parts{graph.take_deferred(), graph.take_leading()}));
}

void RestOfBackward::run() {
  require(parts_ != nullptr, "the rest of a backward runs twice");
  Backward graph(std::move(parts_->deferred), std::move(parts_->leading));
  parts_.reset();
  autograd::run(graph);
}

std::vector<Tensor> gradients_of(std::span<const Root> roots, std::span<const Tensor> inputs) {
  for (const Tensor& input : inputs) {
    require(input.requires_grad(), "the gradient of '{}' is captured, which requires none", input.storage()->what());
  }
  std::vector<Root> leading;
  for (const Root& root : roots) {
    if (root.result.requires_grad()) leading.push_back(root);
  }
  std::vector<Tensor> captured(inputs.size());
  Backward graph(leading, inputs, captured);
  run(graph, /*is_captured=*/true);
  return captured;
}

FunctionScope::FunctionScope() : grad_mode_(true) {
  TapeState& state = TapeState::current();
  outer_in_function_ = std::exchange(state.in_function, true);
  outer_hooks_ = std::exchange(state.saved_hooks, {});
}

FunctionScope::~FunctionScope() {
  TapeState& state = TapeState::current();
  state.in_function = outer_in_function_;
  state.saved_hooks = std::move(outer_hooks_);
}

bool in_function() { return TapeState::current().in_function; }

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
