#include "models/graph/graph_program.h"

#include <algorithm>
#include <map>
#include <unordered_set>

#include "engine/core/error.h"
#include "models/graph/graph_backward.h"
#include "models/graph/graph_costs.h"

namespace loom::models {
namespace {

class ProgramCompiler {
 public:
  explicit ProgramCompiler(ModelGraph graph) : parts_((program_.graph = std::move(graph), program_.graph)) {
    makers_ = makers_of_storages(graph_);
    program_.tensors_of.resize(graph_.storages.size());
    for (std::size_t i = 0; i < graph_.tensors.size(); ++i) {
      program_.tensors_of[static_cast<std::size_t>(graph_.tensors[i].storage)].push_back(static_cast<int>(i));
    }
    program_.module_calls.resize(graph_.modules.size());
    fixed_.resize(graph_.tensors.size());
    requires_grad_.resize(graph_.tensors.size());
    newest_.assign(graph_.storages.size(), -1);
    for (const GraphParameter& parameter : graph_.parameters) {
      set_fixed(parameter.tensor);
      requires_grad_[static_cast<std::size_t>(parameter.tensor)] = parameter.requires_grad;
    }
    for (const GraphBuffer& buffer : graph_.buffers) set_fixed(buffer.tensor);
    for (const GraphInput& input : graph_.inputs) newest_[storage_of(input.tensor)] = input.tensor;
  }

  GraphProgram compile() {
    open(-1, {});
    std::size_t i = 0;
    for (; i < graph_.events.size() && graph_.events[i].kind != EventKind::kBackward; ++i) add(graph_.events[i]);
    if (frames_.size() != 1 || program_.loss < 0 || program_.module_calls.front().size() != 1) {
      config_error("{}: the forward does not call the model once and end with its loss", graph_.file);
    }
    close();
    compile_nodes();
    list_kept();
    list_unknown();
    return std::move(program_);
  }

 private:
  // A call that has not ended.
  struct OpenCall {
    int call = 0;
    std::unordered_set<int> known;  // its arguments, and what was made in it
  };
  // The saves of the operator that comes next.
  struct PendingSave {
    int tensor = 0;
    std::int64_t owner = -1;
  };

  std::size_t storage_of(int tensor) const {
    return static_cast<std::size_t>(graph_.tensors[static_cast<std::size_t>(tensor)].storage);
  }
  void set_fixed(int tensor) {
    fixed_[static_cast<std::size_t>(tensor)] = true;
    newest_[storage_of(tensor)] = tensor;
  }
  GraphCall& call() { return program_.calls[static_cast<std::size_t>(frames_.back().call)]; }
  bool is_float(int tensor) const { return is_floating(graph_.tensors[static_cast<std::size_t>(tensor)].dtype); }

  void add(const GraphEvent& event) {
    switch (event.kind) {
      case EventKind::kEnter:
        enter(event);
        break;
      case EventKind::kExit:
        exit(event);
        break;
      case EventKind::kOp:
        add_operator(event.op);
        break;
      case EventKind::kFree:
        call().steps.push_back({GraphStep::Kind::kFree, event.id});
        break;
      case EventKind::kSave:
        add_save(event);
        break;
      case EventKind::kLoss:
        program_.loss = event.ids.front();
        read(program_.loss);
        break;
      default:
        break;
    }
  }

  void open(int module, std::vector<int> positional) {
    frames_.push_back({static_cast<int>(program_.calls.size()), {}});
    GraphCall& opened = program_.calls.emplace_back();
    opened.module = module;
    opened.positional = positional.size();
    opened.arguments = std::move(positional);
    frames_.back().known.insert(opened.arguments.begin(), opened.arguments.end());
    if (module < 0) return;
    std::vector<int>& calls = program_.module_calls[static_cast<std::size_t>(module)];
    opened.number = std::ssize(calls);
    calls.push_back(frames_.back().call);
  }

  void close() {
    const OpenCall closed = std::move(frames_.back());
    frames_.pop_back();
    if (frames_.empty()) return;
    const std::vector<int>& made = program_.calls[static_cast<std::size_t>(closed.call)].made;
    for (const int tensor : made) bind(tensor);
  }

  void enter(const GraphEvent& event) {
    constexpr std::size_t kMostLevels = 256;
    if (frames_.size() > kMostLevels) {
      config_error("{}: calls of modules are nested more than {} times", graph_.file, kMostLevels);
    }
    for (const int id : event.ids) read(id);
    call().steps.push_back({GraphStep::Kind::kCall, static_cast<int>(program_.calls.size())});
    open(event.id, event.ids);
  }

  void exit(const GraphEvent& event) {
    if (call().module != event.id) {
      config_error("{}: '{}' is left, but '{}' was entered last", graph_.file,
                   graph_.modules[static_cast<std::size_t>(event.id)].path,
                   call().module < 0 ? "" : graph_.modules[static_cast<std::size_t>(call().module)].path);
    }
    for (const int id : event.ids) read(id);
    call().results = event.ids;
    close();
  }

  // In every call that is open and did not make it, it is an argument.
  void read(int tensor) {
    if (fixed_[static_cast<std::size_t>(tensor)]) return;
    for (auto frame = frames_.rbegin(); frame != frames_.rend(); ++frame) {
      if (!frame->known.insert(tensor).second) return;
      program_.calls[static_cast<std::size_t>(frame->call)].arguments.push_back(tensor);
    }
  }

  void bind(int tensor) {
    if (frames_.back().known.insert(tensor).second) call().made.push_back(tensor);
    newest_[storage_of(tensor)] = tensor;
  }

  void add_save(const GraphEvent& event) {
    read(event.ids.front());
    const std::int64_t owner = parts_.owner(event.id);
    saves_.push_back({event.ids.front(), owner >= 0 ? owner : event.number});
    // Behind the operator that made its node.
    const auto found = operation_of_.find(saves_.back().owner);
    if (found == operation_of_.end()) return;
    program_.operations[static_cast<std::size_t>(found->second)].saved_after.push_back(saves_.back().tensor);
    saves_.pop_back();
  }

  // The node that the operator makes: that of its number or, of one in place, whose number was taken by the copy
  // that it saves, the newest that none has made.
  std::int64_t node_of(const GraphOp& op) const {
    if (op.sequence < 0 || std::ranges::none_of(op.ins, [&](int in) { return requires_grad_[in]; })) return -1;
    if (!operation_of_.contains(op.sequence)) return op.sequence;
    if (op.writes.empty()) return -1;
    constexpr std::int64_t kFar = 8;
    const std::int64_t least = std::max<std::int64_t>(op.sequence - kFar, 0);
    for (std::int64_t sequence = op.sequence - 1; sequence >= least; --sequence) {
      if (!operation_of_.contains(sequence)) return parts_.has(sequence) ? sequence : -1;
    }
    return -1;
  }

  // A tensor into a part of which gradients were written has a node of its own in PyTorch, which is not replayed.
  void check_whole(const GraphOp& op) const {
    for (const int in : op.ins) {
      const auto part = part_of_.find(storage_of(in));
      if (part == part_of_.end() || std::ranges::find(part->second->outs, in) != part->second->outs.end()) continue;
      config_error(
          "{}: {} in '{}' writes a part of a tensor that needs a gradient, and {} in '{}' reads the tensor; the gradients "
          "of such a tensor are not known here: build it with torch.stack or torch.cat, and record the model again",
          graph_.file, name_of(*part->second), path_of(*part->second), name_of(op), path_of(op));
    }
  }
  const std::string& name_of(const GraphOp& op) const { return graph_.ops[static_cast<std::size_t>(op.name)]; }
  const std::string& path_of(const GraphOp& op) const {
    return graph_.modules[static_cast<std::size_t>(op.module)].path;
  }
  void note_part(const GraphOp& op) {
    for (const int out : op.outs) {
      const GraphTensor& written = graph_.tensors[static_cast<std::size_t>(out)];
      if (written.nbytes() < graph_.storages[storage_of(out)].bytes) part_of_[storage_of(out)] = &op;
    }
  }

  void add_operator(int index) {
    const GraphOp& op = graph_.operators[static_cast<std::size_t>(index)];
    check_whole(op);
    GraphOperation operation;
    operation.name = op.name;
    operation.ins = op.ins;
    // A constant is its own input: it is made here.
    for (const int in : op.ins) {
      if (makers_[storage_of(in)] != index) read(in);
    }
    const std::int64_t node = node_of(op);
    const OpClass op_class = class_of(graph_.ops[static_cast<std::size_t>(op.name)]);
    operation.has_cost = moves(graph_, op, op_class, makers_, index);
    if (operation.has_cost) operation.cost = cost_of(graph_, op, op_class);
    add_outputs(op, index, operation);
    if (node >= 0 && !op.writes.empty()) note_part(op);
    if (node >= 0) {
      for (const int in : op.ins) {
        if (requires_grad_[static_cast<std::size_t>(in)]) operation.node_inputs.push_back(in);
      }
      for (int i = 0; i < std::ssize(op.outs); ++i) {
        if (is_float(op.outs[static_cast<std::size_t>(i)])) operation.node_outputs.push_back(i);
      }
      for (const PendingSave& save : saves_) {
        if (save.owner == node) operation.saved_before.push_back(save.tensor);
      }
      std::erase_if(saves_, [&](const PendingSave& save) { return save.owner == node; });
      operation_of_[node] = static_cast<int>(program_.operations.size());
    }
    for (const int out : op.outs) requires_grad_[static_cast<std::size_t>(out)] = node >= 0 && is_float(out);
    call().steps.push_back({GraphStep::Kind::kOp, static_cast<int>(program_.operations.size())});
    program_.operations.push_back(std::move(operation));
  }

  void add_outputs(const GraphOp& op, int index, GraphOperation& operation) {
    for (const int out : op.outs) {
      const std::size_t storage = storage_of(out);
      GraphOutput output{.tensor = out};
      const bool is_first = std::ranges::none_of(
          operation.outs, [&](const GraphOutput& other) { return storage_of(other.tensor) == storage; });
      if (makers_[storage] != index || !is_first) {
        output.of = newest_[storage];
        if (output.of < 0) {
          config_error(
              "{}: {} shows storage {}, which nothing has made; record the model again with "
              "tools/record_model.py",
              graph_.file, graph_.ops[static_cast<std::size_t>(op.name)], storage);
        }
        read(output.of);
      }
      bind(out);
      operation.outs.push_back(output);
    }
  }

  void compile_nodes() {
    for (const auto& [sequence, index] : operation_of_) {
      GraphOperation& operation = program_.operations[static_cast<std::size_t>(index)];
      operation.node = static_cast<int>(program_.nodes.size());
      program_.nodes.push_back(parts_.has(sequence) ? parts_.compile(sequence, operation, makers_, fixed_)
                                                    : GraphBackward{});
    }
  }

  void list_kept() {
    std::map<std::size_t, int> living;  // by storage: a tensor
    for (const GraphEvent& event : graph_.events) {
      if (event.kind == EventKind::kBackward) break;
      if (event.kind == EventKind::kFree) living.erase(static_cast<std::size_t>(event.id));
      if (event.kind != EventKind::kOp) continue;
      for (const int out : graph_.operators[static_cast<std::size_t>(event.op)].outs) {
        if (makers_[storage_of(out)] >= 0) living[storage_of(out)] = out;
      }
    }
    living.erase(storage_of(program_.loss));
    for (const auto& [storage, tensor] : living) program_.kept.push_back(tensor);
  }

  void list_unknown() {
    std::map<int, double> bytes;
    double all = 0;
    for (std::size_t i = 0; i < graph_.operators.size(); ++i) {
      const GraphOp& op = graph_.operators[i];
      const OpClass op_class = class_of(graph_.ops[static_cast<std::size_t>(op.name)]);
      if (!moves(graph_, op, op_class, makers_, static_cast<int>(i))) continue;
      const device::Cost cost = cost_of(graph_, op, op_class);
      const auto moved = static_cast<double>(cost.read_bytes + cost.written_bytes);
      all += moved;
      if (op_class == OpClass::kUnknown) bytes[op.name] += moved;
    }
    for (const auto& [name, moved] : bytes) {
      program_.unknown.push_back({graph_.ops[static_cast<std::size_t>(name)], all > 0 ? moved / all : 0});
    }
    std::ranges::stable_sort(program_.unknown, std::greater{}, &UnknownOperator::share);
  }

  GraphProgram program_;
  const ModelGraph& graph_ = program_.graph;
  const BackwardParts parts_;
  std::vector<int> makers_;          // by storage
  std::vector<bool> fixed_;          // by tensor: a parameter or buffer
  std::vector<bool> requires_grad_;  // by tensor, now
  std::vector<int> newest_;          // by storage: the tensor bound last
  std::vector<OpenCall> frames_;
  std::vector<PendingSave> saves_;
  std::map<std::int64_t, int> operation_of_;       // by number of a node
  std::map<std::size_t, const GraphOp*> part_of_;  // by storage: what last wrote a part of it
};

}  // namespace

GraphProgram make_graph_program(ModelGraph graph) { return ProgramCompiler(std::move(graph)).compile(); }

}  // namespace loom::models
