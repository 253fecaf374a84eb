// The tape: define-by-run, reverse mode, one per rank.
//
// Recording   an operator computes its result, then calls record(): when the grad mode is on and an input requires
//             grad, the outputs get a Node whose edges lead to the inputs' nodes. Nodes carry a sequence number, later
//             is larger.
// Backward    backward(loss) counts dependencies, then runs ready nodes, largest sequence number first; gradient
//             accumulation into leaves goes before everything else. This is PyTorch's order, and hooks can observe
//             it. A node's saved tensors are freed after it ran: a second backward through it is an error. There are
//             no gradients of gradients.
// Hooks       tensor hooks run when a gradient is complete; saved-tensor hooks see every tensor that is saved
//             (recompute, swap); callbacks queued during a backward run when its graph is done.
// Nesting     backward may be called from inside a node (reentrant recompute); each call has its own graph task.
// State       grad mode, saved-tensor hooks and running tasks belong to the rank (RankContext slot).
// Threads     the rank's host thread.
#pragma once

#include <any>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tensor/tensor.h"

namespace loom::autograd {

class Node;

struct Edge {
  std::shared_ptr<Node> node;  // null: the input needs no gradient
  int output = 0;              // which output of that node the gradient belongs to
};

// A tensor kept for backward, through the saved-tensor hooks in force when it was saved.
class SavedTensor {
 public:
  SavedTensor() = default;
  explicit SavedTensor(const Tensor& tensor);
  // The tensor, without graph; undefined if an undefined one was saved. Throws ModelError when it was overwritten
  // since.
  Tensor unpack() const;

 private:
  Tensor tensor_;
  std::uint64_t version_ = 0;
  std::any packed_;
  std::function<Tensor(const std::any&)> unpack_;
};

class Node {
 public:
  virtual ~Node();
  // grads[i]: gradient of output i, undefined when none came (an operator's node does nothing when none of them came).
  // Returns one gradient per edge (undefined: none).
  virtual std::vector<Tensor> backward(const std::vector<Tensor>& grads) = 0;
  virtual void release_saved() {}
  virtual std::string_view name() const = 0;

  std::vector<Edge> edges;
  std::uint64_t sequence = 0;
  std::vector<std::vector<Tensor::Hook>> hooks;  // by output
};

// Asked before an operator's result is used, for a tensor that operators may not read at all times: throws when they
// may not.
class UseGuard {
 public:
  virtual ~UseGuard() = default;
  virtual void check(std::string_view op) const = 0;
};

// A tensor's place in the graph.
struct Meta {
  bool requires_grad = false;
  Tensor grad;
  std::shared_ptr<Node> node;  // of a result
  int output = 0;
  std::weak_ptr<Node> accumulator;  // of a leaf
  std::vector<Tensor::Hook> leaf_hooks;
  std::vector<std::function<void(const Tensor&)>> post_accumulate_hooks;
  std::shared_ptr<const UseGuard> guard;  // mostly null
};

using Saved = std::span<const Tensor>;
// needs[i]: input i needs a gradient.
using Needs = std::vector<bool>;
using Grads = std::vector<Tensor>;
// Computes the inputs' gradients from the outputs' gradients. `saved` are the tensors given to record(), in order.
using BackwardFn = std::function<Grads(Saved saved, const Grads& outputs, const Needs& needs)>;

// Runs the guards of an operator's inputs; some may be undefined. record() does it too; an operator that refuses
// shapes does it before.
void check_inputs(std::string_view op, std::span<const Tensor> inputs);

// True when an operator on these inputs will be recorded.
bool will_record(std::span<const Tensor> inputs);

// Gives `outputs` a node with edges to `inputs`. Inputs may be undefined. Nothing happens when nothing is to be
// recorded.
void record(std::string_view name, std::vector<Tensor> inputs, std::vector<Tensor> saved, std::vector<Tensor> outputs,
            BackwardFn backward);

// For the backward of an operator, before the kernel that computes `gradient` of input `input`: the sum of what other
// consumers of the input gave, if the kernel may add to it. Who gets a defined tensor adds the gradient to it in that
// kernel, rounded to its dtype first (the bits of an addition afterwards), keeps no handle of it, and still returns
// `gradient`, whose bytes are never read. The tape records and prices the addition all the same.
Tensor add_gradient_to(std::size_t input, const Tensor& gradient);

// In the backward of an operator, the sum of what other consumers of input `input` gave so far, which is taken away:
// the operator returns it with its own gradient added. Undefined where nothing came.
Tensor take_gradient_sum(std::size_t input);

// record() in two steps: saves before the operator computes. For operators whose saved tensors are all inputs: a
// recompute that ends at the last tensor it needs then ends before their kernel, as PyTorch's does.
class Recording {
 public:
  Recording(std::string_view name, std::vector<Tensor> inputs, const std::vector<Tensor>& saved);
  // Gives `outputs` their node. Once.
  void finish(const std::vector<Tensor>& outputs, BackwardFn backward);

 private:
  const std::string_view name_;  // of a literal
  const std::vector<Tensor> inputs_;
  bool records_ = false;
  std::vector<SavedTensor> kept_;
};

// Passes tensors through one identity node: the results share the bytes of the inputs; `after` runs in backward once
// the gradients of all results are complete, before they go on to the inputs. Inputs that need no gradient are returned
// as they are.
std::vector<Tensor> identity_with_backward(std::string_view name, const std::vector<Tensor>& inputs,
                                           std::function<void()> after);

// Runs backward from `loss`; `grad` is its gradient (default: ones for a loss with one element).
void backward(const Tensor& loss, const Tensor& grad = {});
// The same from several results at once, in one graph task; a shared node runs once. A result may lead to
// another one.
struct Root {
  Tensor result;
  Tensor grad;
};
void backward(std::span<const Root> roots);

// Runs `callback` when the innermost running backward is done. Precondition: in_backward().
void queue_callback(std::function<void()> callback);
bool in_backward();
// A number of the innermost running backward, never repeated on a rank; 0 outside.
std::uint64_t graph_task_id();

bool grad_enabled();
// Sets the grad mode for a scope.
class GradMode {
 public:
  explicit GradMode(bool on);
  ~GradMode();
  GradMode(const GradMode&) = delete;
  GradMode& operator=(const GradMode&) = delete;

 private:
  const bool previous_;
  const bool previous_deferred_;
};
class NoGrad : public GradMode {
 public:
  NoGrad() : GradMode(false) {}
};

// No graph is recorded in this scope, but backward will run again what runs in it: the first forward of reentrant
// recompute. Precondition: grad_enabled().
class GradDeferred {
 public:
  GradDeferred();
  ~GradDeferred();
  GradDeferred(const GradDeferred&) = delete;
  GradDeferred& operator=(const GradDeferred&) = delete;
};
// True when what runs now will have a backward: the grad mode is on, or a graph is deferred.
bool backward_expected();

// While in scope, every saved tensor goes through `pack` and comes back through `unpack`. Scopes nest; the innermost
// pair acts.
struct SavedTensorHooks {
  std::function<std::any(const Tensor&)> pack;
  std::function<Tensor(const std::any&)> unpack;
};
class SavedTensorHooksScope {
 public:
  explicit SavedTensorHooksScope(SavedTensorHooks hooks);
  ~SavedTensorHooksScope();
  SavedTensorHooksScope(const SavedTensorHooksScope&) = delete;
  SavedTensorHooksScope& operator=(const SavedTensorHooksScope&) = delete;
};

}  // namespace loom::autograd
