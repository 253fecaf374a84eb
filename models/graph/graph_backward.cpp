#include "models/graph/graph_backward.h"

#include <algorithm>
#include <optional>
#include <unordered_map>

#include "engine/core/error.h"
#include "engine/core/shape_text.h"
#include "models/graph/graph_costs.h"

namespace loom::models {
namespace {

class NodeCompiler {
 public:
  NodeCompiler(const ModelGraph& graph, const GraphOperation& operation, const std::vector<int>& makers,
               const std::vector<bool>& fixed)
      : graph_(graph), operation_(operation), makers_(makers), fixed_(fixed) {
    for (const auto* saved : {&operation.saved_before, &operation.saved_after}) {
      for (const int tensor : *saved) add_slot(tensor, /*is_made=*/false);
    }
    result_.is_recorded = true;
  }

  void add(const GraphEvent& event) { event.kind == EventKind::kOp ? add_operator(event.op) : add_free(event.id); }

  GraphBackward finish(std::string_view node) {
    result_.slots = static_cast<int>(slots_.size());
    for (const int input : operation_.node_inputs) result_.returns.push_back(gradient_of(input, node));
    return std::move(result_);
  }

 private:
  struct Slot {
    int tensor = 0;
    bool is_made = false;      // by an operator of this node
    bool is_consumed = false;  // by another one
    bool is_freed = false;
    bool is_returned = false;
  };

  const GraphTensor& tensor(int id) const { return graph_.tensors[static_cast<std::size_t>(id)]; }

  int add_slot(int tensor, bool is_made) {
    slots_.push_back({.tensor = tensor, .is_made = is_made});
    return slot_of_[tensor] = static_cast<int>(slots_.size()) - 1;
  }

  GraphBackward::Place place_of(int id) {
    if (const auto found = slot_of_.find(id); found != slot_of_.end()) return {.slot = found->second};
    if (fixed_[static_cast<std::size_t>(id)]) return {.parameter = id};
    return {.slot = add_incoming(id)};
  }

  // What was made elsewhere and not saved is the gradient of an output: the first of its shape without one.
  int add_incoming(int id) {
    const int slot = add_slot(id, /*is_made=*/false);
    const auto is_taken = [&](int output) {
      return std::ranges::any_of(result_.incoming, [&](const auto& one) { return one.output == output; });
    };
    int found = 0;
    for (int i = 0; i < std::ssize(operation_.node_outputs); ++i) {
      const int out = operation_.outs[static_cast<std::size_t>(operation_.node_outputs[i])].tensor;
      if (is_taken(i) || tensor(out).shape != tensor(id).shape) continue;
      found = i;
      break;
    }
    result_.incoming.push_back({slot, found});
    return slot;
  }

  void add_operator(int index) {
    const GraphOp& op = graph_.operators[static_cast<std::size_t>(index)];
    GraphBackward::Step step;
    step.name = op.name;
    for (const int in : op.ins) {
      step.ins.push_back(place_of(in));
      if (step.ins.back().slot >= 0) slots_[static_cast<std::size_t>(step.ins.back().slot)].is_consumed = true;
    }
    std::optional<int> own;  // the storage that this operator made
    for (const int out : op.outs) {
      const int storage = tensor(out).storage;
      GraphBackward::Output output;
      output.tensor = out;
      output.is_view = makers_[static_cast<std::size_t>(storage)] != index || own == storage;
      if (output.is_view) output.of = of_storage(storage);
      own = storage;
      output.slot = add_slot(out, /*is_made=*/true);
      step.outs.push_back(output);
    }
    const OpClass op_class = class_of(graph_.ops[static_cast<std::size_t>(op.name)]);
    step.has_cost = moves(graph_, op, op_class, makers_, index);
    if (step.has_cost) step.cost = cost_of(graph_, op, op_class);
    result_.steps.push_back(std::move(step));
  }

  // A slot or a parameter with this storage; the newest.
  GraphBackward::Place of_storage(int storage) const {
    for (int slot = static_cast<int>(slots_.size()) - 1; slot >= 0; --slot) {
      if (tensor(slots_[static_cast<std::size_t>(slot)].tensor).storage == storage) return {.slot = slot};
    }
    for (const GraphParameter& parameter : graph_.parameters) {
      if (tensor(parameter.tensor).storage == storage) return {.parameter = parameter.tensor};
    }
    for (const GraphBuffer& buffer : graph_.buffers) {
      if (tensor(buffer.tensor).storage == storage) return {.parameter = buffer.tensor};
    }
    config_error("{}: an operator of the backward shows storage {}, which none of its node has", graph_.file, storage);
  }

  void add_free(int storage) {
    GraphBackward::Step step;
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      if (!slots_[i].is_made || slots_[i].is_freed || tensor(slots_[i].tensor).storage != storage) continue;
      slots_[i].is_freed = true;
      step.frees.push_back(static_cast<int>(i));
    }
    if (!step.frees.empty()) result_.steps.push_back(std::move(step));
  }

  bool is_like(int id, int input) const {
    return tensor(id).shape == tensor(input).shape && tensor(id).dtype == tensor(input).dtype;
  }

  // In this order: what an operator made and no other one read, the gradient that came in, what was read too.
  GraphBackward::Return gradient_of(int input, std::string_view node) {
    if (const int slot = made_like(input, /*is_consumed=*/false); slot >= 0) return {.slot = slot};
    for (int i = 0; i < std::ssize(operation_.node_outputs); ++i) {
      const int out = operation_.outs[static_cast<std::size_t>(operation_.node_outputs[i])].tensor;
      if (is_like(out, input)) return {.output = i};
    }
    if (const int slot = made_like(input, /*is_consumed=*/true); slot >= 0) return {.slot = slot};
    config_error("{}: {} makes no gradient of shape {} for its input of {}", graph_.file, node,
                 to_string(tensor(input).shape), graph_.ops[static_cast<std::size_t>(operation_.name)]);
  }

  int made_like(int input, bool is_consumed) {
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      Slot& slot = slots_[i];
      if (!slot.is_made || slot.is_freed || slot.is_returned || slot.is_consumed != is_consumed) continue;
      if (!is_like(slot.tensor, input)) continue;
      slot.is_returned = true;
      return static_cast<int>(i);
    }
    return -1;
  }

  const ModelGraph& graph_;
  const GraphOperation& operation_;
  const std::vector<int>& makers_;
  const std::vector<bool>& fixed_;
  std::vector<Slot> slots_;
  std::unordered_map<int, int> slot_of_;  // by tensor, the newest
  GraphBackward result_;
};

bool is_operator_of(const GraphOp& op, std::int64_t sequence) {
  return op.sequence == sequence && !op.node.empty() && !op.node.ends_with("AccumulateGrad");
}

}  // namespace

BackwardParts::BackwardParts(const ModelGraph& graph) : graph_(graph) {
  const auto is_backward = [](const GraphEvent& event) { return event.kind == EventKind::kBackward; };
  const auto found = std::ranges::find_if(graph.events, is_backward);
  std::vector<std::size_t> pending;
  std::vector<int> unpacked;
  std::int64_t ended = -1;
  for (auto i = static_cast<std::size_t>(found - graph.events.begin()); i < graph.events.size(); ++i) {
    const GraphEvent& event = graph.events[i];
    switch (event.kind) {
      case EventKind::kOp:
      case EventKind::kFree:
        pending.push_back(i);
        break;
      case EventKind::kUnpack:
        unpacked.push_back(event.id);
        break;
      case EventKind::kDrop:
        owners_.try_emplace(event.id, ended);
        break;
      case EventKind::kNode:
        ended = event.number;
        for (const int save : unpacked) owners_[save] = ended;
        if (ended >= 0) parts_[ended].events = pending;
        pending.clear();
        unpacked.clear();
        break;
      default:
        break;
    }
  }
}

std::int64_t BackwardParts::owner(int save) const {
  const auto found = owners_.find(save);
  return found == owners_.end() ? -1 : found->second;
}

GraphBackward BackwardParts::compile(std::int64_t sequence, const GraphOperation& operation,
                                     const std::vector<int>& makers, const std::vector<bool>& fixed) const {
  const Part& part = parts_.at(sequence);
  NodeCompiler compiler(graph_, operation, makers, fixed);
  std::string_view node = "a node";
  bool begun = false;  // what comes before the first operator of the node belongs to sums of gradients
  for (const std::size_t i : part.events) {
    const GraphEvent& event = graph_.events[i];
    if (event.kind == EventKind::kOp) {
      const GraphOp& op = graph_.operators[static_cast<std::size_t>(event.op)];
      if (!is_operator_of(op, sequence)) continue;
      begun = true;
      node = op.node;
    }
    if (begun) compiler.add(event);
  }
  return compiler.finish(node);
}

std::vector<int> makers_of_storages(const ModelGraph& graph) {
  std::vector<int> makers(graph.storages.size(), -1);
  for (const GraphEvent& event : graph.events) {
    if (event.kind != EventKind::kOp) continue;
    for (const int out : graph.operators[static_cast<std::size_t>(event.op)].outs) {
      const auto storage = static_cast<std::size_t>(graph.tensors[static_cast<std::size_t>(out)].storage);
      if (graph.storages[storage].kind == StorageKind::kTemporary && makers[storage] < 0) makers[storage] = event.op;
    }
  }
  return makers;
}

bool moves(const ModelGraph& graph, const GraphOp& op, OpClass op_class, const std::vector<int>& makers, int index) {
  if (op_class == OpClass::kView) return false;
  if (!op.writes.empty()) return true;
  return std::ranges::any_of(op.outs, [&](int out) {
    return makers[static_cast<std::size_t>(graph.tensors[static_cast<std::size_t>(out)].storage)] == index;
  });
}

}  // namespace loom::models
