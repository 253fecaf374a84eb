#include "models/graph/graph_replay.h"

#include <algorithm>
#include <utility>

#include "engine/core/error.h"
#include "engine/device/device.h"

namespace loom::models {
namespace {

// What the gradients that are needed are made from: a frozen parameter's are not.
struct NeededParts {
  std::vector<bool> steps;
  std::vector<bool> slots;
};

NeededParts needed_parts(const GraphBackward& node, const autograd::Needs& needs) {
  NeededParts parts{std::vector<bool>(node.steps.size()), std::vector<bool>(static_cast<std::size_t>(node.slots))};
  auto& [steps, slots] = parts;
  const auto need = [&](const GraphBackward::Place& place) {
    if (place.slot >= 0) slots[static_cast<std::size_t>(place.slot)] = true;
  };
  for (std::size_t i = 0; i < node.returns.size(); ++i) {
    if (needs[i]) need({.slot = node.returns[i].slot});
  }
  for (std::size_t i = node.steps.size(); i-- > 0;) {
    const GraphBackward::Step& step = node.steps[i];
    steps[i] = step.outs.empty() || std::ranges::any_of(step.outs, [&](const GraphBackward::Output& out) {
                 return slots[static_cast<std::size_t>(out.slot)];
               });
    if (!steps[i]) continue;
    std::ranges::for_each(step.ins, need);
    for (const GraphBackward::Output& out : step.outs) need(out.of);
  }
  return parts;
}

bool all_needed(const autograd::Needs& needs) { return std::ranges::find(needs, false) == needs.end(); }

const GraphTensor& described(const GraphProgram& program, int tensor) {
  return program.graph.tensors[static_cast<std::size_t>(tensor)];
}

}  // namespace

// A call's arguments under their numbers; what was there comes back at its end, but for storages freed meanwhile.
class Replay::Frame {
 public:
  Frame(Replay& replay, const GraphCall& call, const std::vector<Tensor>& arguments) : replay_(replay), call_(call) {
    require(arguments.size() == call.arguments.size(), "a recorded module was called with {} tensors of {}",
            arguments.size(), call.arguments.size());
    before_.reserve(arguments.size());
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      const int tensor = call.arguments[i];
      Tensor& bound = replay.tensors_[static_cast<std::size_t>(tensor)];
      before_.push_back({tensor, replay.frees_[storage(tensor)], std::exchange(bound, arguments[i])});
    }
    ++replay.depth_;
  }
  ~Frame() {
    if (--replay_.depth_ == 0) replay_.clear(call_.made);
    for (Before& one : before_) {
      const bool is_freed = replay_.frees_[storage(one.tensor)] != one.frees;
      replay_.tensors_[static_cast<std::size_t>(one.tensor)] = is_freed ? Tensor() : std::move(one.bound);
    }
  }
  Frame(const Frame&) = delete;
  Frame& operator=(const Frame&) = delete;

 private:
  struct Before {
    int tensor = 0;
    std::uint32_t frees = 0;
    Tensor bound;
  };
  std::size_t storage(int tensor) const {
    return static_cast<std::size_t>(described(*replay_.program_, tensor).storage);
  }

  Replay& replay_;
  const GraphCall& call_;
  std::vector<Before> before_;
};

Replay::Replay(std::shared_ptr<const GraphProgram> program) : program_(std::move(program)) {
  const std::size_t tensors = program_->graph.tensors.size();
  slots_.resize(tensors);
  buffers_.resize(tensors);
  tensors_.resize(tensors);
  frees_.resize(program_->graph.storages.size());
}

bool Replay::is_fixed(int tensor) const {
  return slots_[static_cast<std::size_t>(tensor)] != nullptr || buffers_[static_cast<std::size_t>(tensor)] != nullptr;
}

const Tensor& Replay::fixed(int tensor) const {
  const nn::ParamSlot* slot = slots_[static_cast<std::size_t>(tensor)];
  return slot != nullptr ? slot->value : buffers_[static_cast<std::size_t>(tensor)]->value;
}

const Tensor& Replay::at(int tensor) const {
  if (is_fixed(tensor)) return fixed(tensor);
  const Tensor& bound = tensors_[static_cast<std::size_t>(tensor)];
  if (!bound.defined()) {
    config_error("{}: tensor {} is read where it is not alive; record the model again with tools/record_model.py",
                 program_->graph.file, tensor);
  }
  return bound;
}

Tensor Replay::made(int tensor, int name) const {
  const GraphTensor& about = described(*program_, tensor);
  const auto storage =
      std::make_shared<Storage>(Place::kDevice, &device::Device::current(),
                                program_->graph.storages[static_cast<std::size_t>(about.storage)].bytes,
                                device::MemCategory::kActivation, program_->graph.ops[static_cast<std::size_t>(name)]);
  storage->allocate();
  return {storage, 0, about.shape, about.dtype};
}

Tensor Replay::view(const Tensor& of, int tensor) const {
  const GraphTensor& about = described(*program_, tensor);
  return {of.storage(), 0, about.shape, about.dtype};
}

void Replay::free(int storage) {
  ++frees_[static_cast<std::size_t>(storage)];
  clear(program_->tensors_of[static_cast<std::size_t>(storage)]);
}

void Replay::clear(const std::vector<int>& tensors) {
  for (const int tensor : tensors) tensors_[static_cast<std::size_t>(tensor)] = Tensor();
}

std::vector<Tensor> Replay::run(int index, const std::vector<Tensor>& arguments) {
  check_model(device::Device::current().dry_run(),
              "a recorded model has no arithmetic: it can be planned, not trained; use shardloom plan");
  const GraphCall& call = program_->calls[static_cast<std::size_t>(index)];
  const Frame frame(*this, call, arguments);
  run_steps(call.steps, 0, call.steps.size());
  std::vector<Tensor> results;
  results.reserve(call.results.size());
  for (const int tensor : call.results) results.push_back(at(tensor));
  if (call.module == 0) {
    for (const int tensor : program_->kept) {
      if (const Tensor& bound = tensors_[static_cast<std::size_t>(tensor)]; bound.defined()) kept_.push_back(bound);
    }
  }
  return results;
}

std::vector<Tensor> Replay::run_alone(int index, const std::vector<Tensor>& arguments) {
  std::vector<Tensor> results = run(index, arguments);
  for (const int tensor : program_->calls[static_cast<std::size_t>(index)].results) {
    clear(program_->tensors_of[static_cast<std::size_t>(described(*program_, tensor).storage)]);
  }
  return results;
}

void Replay::run_steps(const std::vector<GraphStep>& steps, std::size_t begin, std::size_t end) {
  for (std::size_t i = begin; i < end; ++i) {
    const GraphStep& step = steps[i];
    switch (step.kind) {
      case GraphStep::Kind::kOp:
        run_operation(program_->operations[static_cast<std::size_t>(step.index)]);
        break;
      case GraphStep::Kind::kFree:
        free(step.index);
        break;
      case GraphStep::Kind::kCall:
        run_call(step.index);
        break;
    }
  }
}

// Through the module, with what wraps it.
void Replay::run_call(int index) {
  const GraphCall& call = program_->calls[static_cast<std::size_t>(index)];
  nn::Args args;
  for (std::size_t i = 0; i < call.positional; ++i) args.positional.emplace_back(at(call.arguments[i]));
  for (std::size_t i = call.positional; i < call.arguments.size(); ++i) {
    args.named.emplace_back(std::to_string(i), at(call.arguments[i]));
  }
  args.named.emplace_back("call", call.number);
  const nn::Value results = modules_[static_cast<std::size_t>(call.module)]->call(std::move(args));
  const nn::ValueList& list = results.list();
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (!is_fixed(call.results[i])) tensors_[static_cast<std::size_t>(call.results[i])] = list[i].tensor();
  }
}

std::vector<Tensor> Replay::outputs_of(const GraphOperation& operation) {
  std::vector<Tensor> outputs;
  outputs.reserve(operation.outs.size());
  for (const GraphOutput& out : operation.outs) {
    if (out.of < 0) {
      outputs.push_back(made(out.tensor, operation.name));
      continue;
    }
    const auto same = std::ranges::find(operation.outs, out.of, &GraphOutput::tensor);
    const auto place = static_cast<std::size_t>(same - operation.outs.begin());
    outputs.push_back(view(place < outputs.size() ? outputs[place] : at(out.of), out.tensor));
  }
  return outputs;
}

std::vector<Tensor> Replay::read_all(const std::vector<int>& tensors) const {
  std::vector<Tensor> found;
  found.reserve(tensors.size());
  for (const int tensor : tensors) found.push_back(at(tensor));
  return found;
}

// As PyTorch's derivatives do, a node keeps what the gradients that are needed are made from.
std::vector<Tensor> Replay::saved_of(const GraphOperation& operation, const std::vector<int>& saved) const {
  std::vector<Tensor> tensors = read_all(saved);
  const GraphBackward& node = program_->nodes[static_cast<std::size_t>(operation.node)];
  autograd::Needs needs;
  for (const int input : operation.node_inputs) needs.push_back(at(input).requires_grad());
  if (!node.is_recorded || all_needed(needs)) return tensors;
  const std::vector<bool> is_needed = needed_parts(node, needs).slots;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!is_needed[i]) tensors[i] = Tensor();
  }
  return tensors;
}

void Replay::run_operation(const GraphOperation& operation) {
  const std::string& name = program_->graph.ops[static_cast<std::size_t>(operation.name)];
  for (const int in : operation.ins) {
    if (const nn::ParamSlot* slot = slots_[static_cast<std::size_t>(in)])
      autograd::check_inputs(name, {&slot->value, 1});
  }
  const bool has_node = operation.node >= 0;
  const bool saves_first = has_node && operation.saved_after.empty();
  std::optional<autograd::Recording> recording;
  if (saves_first) {
    recording.emplace(name, read_all(operation.node_inputs), saved_of(operation, operation.saved_before));
  }
  const std::vector<Tensor> outputs = outputs_of(operation);
  if (operation.has_cost) device::Device::current().launch(name, operation.cost, [] {});
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!is_fixed(operation.outs[i].tensor)) {
      tensors_[static_cast<std::size_t>(operation.outs[i].tensor)] = outputs[i];
    }
  }
  if (!has_node) return;
  if (!saves_first) {
    std::vector<int> saved = operation.saved_before;
    saved.insert(saved.end(), operation.saved_after.begin(), operation.saved_after.end());
    recording.emplace(name, read_all(operation.node_inputs), saved_of(operation, saved));
  }
  std::vector<Tensor> recorded;
  for (const int i : operation.node_outputs) recorded.push_back(outputs[static_cast<std::size_t>(i)]);
  const GraphBackward& node = program_->nodes[static_cast<std::size_t>(operation.node)];
  recording->finish(recorded,
                    [this, &node](autograd::Saved saved, const autograd::Grads& grads, const autograd::Needs& needs) {
                      return run_backward(node, saved, grads, needs);
                    });
}

autograd::Grads Replay::run_backward(const GraphBackward& node, autograd::Saved saved, const autograd::Grads& grads,
                                     const autograd::Needs& needs) const {
  check_model(node.is_recorded,
              "{}: a gradient comes to a tensor that had none in the recording; record the model "
              "with the loss that is trained",
              program_->graph.file);
  std::vector<Tensor> slots(static_cast<std::size_t>(node.slots));
  std::copy(saved.begin(), saved.end(), slots.begin());
  for (const GraphBackward::Incoming& one : node.incoming) {
    slots[static_cast<std::size_t>(one.slot)] = grads.at(static_cast<std::size_t>(one.output));
  }
  const auto at_place = [&](const GraphBackward::Place& place) {
    return place.slot >= 0 ? slots[static_cast<std::size_t>(place.slot)] : fixed(place.parameter);
  };
  const bool is_whole = all_needed(needs);
  const std::vector<bool> is_needed = is_whole ? std::vector<bool>() : needed_parts(node, needs).steps;
  for (std::size_t i = 0; i < node.steps.size(); ++i) {
    const GraphBackward::Step& step = node.steps[i];
    if (!is_whole && !is_needed[i]) continue;
    for (const int slot : step.frees) slots[static_cast<std::size_t>(slot)] = Tensor();
    for (const GraphBackward::Output& out : step.outs) {
      slots[static_cast<std::size_t>(out.slot)] =
          out.is_view ? view(at_place(out.of), out.tensor) : made(out.tensor, step.name);
    }
    if (step.has_cost) {
      device::Device::current().launch(program_->graph.ops[static_cast<std::size_t>(step.name)], step.cost, [] {});
    }
  }
  autograd::Grads results(node.returns.size());
  for (std::size_t i = 0; i < results.size(); ++i) {
    const GraphBackward::Return& one = node.returns[i];
    if (!needs[i]) continue;
    results[i] =
        one.slot >= 0 ? slots[static_cast<std::size_t>(one.slot)] : grads.at(static_cast<std::size_t>(one.output));
  }
  return results;
}

std::size_t Replay::model_call() const {
  const std::vector<GraphStep>& steps = program_->calls.front().steps;
  return static_cast<std::size_t>(std::ranges::find(steps, GraphStep::Kind::kCall, &GraphStep::kind) - steps.begin());
}

void Replay::run_before(const std::vector<Tensor>& inputs) {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    tensors_[static_cast<std::size_t>(program_->graph.inputs[i].tensor)] = inputs[i];
  }
  run_steps(program_->calls.front().steps, 0, model_call());
}

Tensor Replay::loss_of(const std::vector<Tensor>& results) {
  const GraphCall& around = program_->calls.front();
  const GraphCall& model = program_->calls[static_cast<std::size_t>(around.steps[model_call()].index)];
  for (std::size_t i = 0; i < model.results.size(); ++i) {
    tensors_[static_cast<std::size_t>(model.results[i])] = results.at(i);
  }
  run_steps(around.steps, model_call() + 1, around.steps.size());
  Tensor loss = at(program_->loss);
  clear(around.made);
  for (const GraphInput& input : program_->graph.inputs) tensors_[static_cast<std::size_t>(input.tensor)] = Tensor();
  return loss;
}

}  // namespace loom::models
