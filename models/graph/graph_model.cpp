#include "models/graph/graph_model.h"

#include <algorithm>
#include <string>
#include <unordered_map>

#include "engine/core/error.h"
#include "engine/nn/path_aliases.h"
#include "models/graph/graph_replay.h"
#include "models/lora/lora_linear.h"

namespace loom::models {
namespace {

using nn::Args;
using nn::Value;

// The call of the program that the arguments name.
int call_of(const Args& args, const std::vector<int>& calls, const GraphModule& about) {
  const Value& number = args.find("call");
  const std::int64_t call = number.is_none() ? 0 : number.number();
  require(call < std::ssize(calls), "'{}' is called {} times in the recording", about.path, calls.size());
  return calls[static_cast<std::size_t>(call)];
}

// Its calls are numbered in the order of the recording; a recompute repeats the number of the call.
class RecordedModule : public nn::Module {
 public:
  RecordedModule(std::shared_ptr<Replay> replay, int module)
      : replay_(std::move(replay)),
        about_(replay_->program().graph.modules[static_cast<std::size_t>(module)]),
        calls_(replay_->program().module_calls[static_cast<std::size_t>(module)]) {}

  std::string_view type_name() const override { return about_.type; }
  // A container is a list of modules that no parent calls.
  bool has_forward() const override {
    return !calls_.empty() || (about_.type != "ModuleList" && about_.type != "ModuleDict");
  }
  void add(const std::string& name, const std::shared_ptr<RecordedModule>& child) { register_module(name, child); }
  nn::ParamSlot& add_parameter(const std::string& name, const Shape& shape, DType dtype) {
    return register_parameter(name, shape, nn::Init::normal(kStd), dtype);
  }
  nn::ParamSlot& add_tied(const std::string& name, const nn::ParamSlot& other) { return register_tied(name, other); }
  void add_buffer(const std::string& name, const Shape& shape, DType dtype) {
    register_buffer(name, Tensor::meta(shape, dtype, name), /*persistent=*/true);  // begins as zeros
  }

 protected:
  Value forward(const Args& args) override {
    const int index = call_of(args, calls_, about_);
    return {replay_->run(index, arguments_of(args, index))};
  }
  virtual std::vector<Tensor> arguments_of(const Args& args, int /*call*/) const { return args.tensors(); }
  Replay& replay() const { return *replay_; }
  const std::shared_ptr<Replay>& shared_replay() const { return replay_; }
  const GraphModule& about() const { return about_; }
  const std::vector<int>& calls() const { return calls_; }

 private:
  static constexpr double kStd = 0.02;

  const std::shared_ptr<Replay> replay_;
  const GraphModule& about_;
  const std::vector<int>& calls_;
};

// The parameter of a slot, under its name or that of the slot which it is tied to; null: none.
const GraphParameter* parameter_at(const ModelGraph& graph, const std::string& slot) {
  const auto tie = std::ranges::find(graph.ties, slot, &GraphTie::name);
  const auto found =
      std::ranges::find(graph.parameters, tie != graph.ties.end() ? tie->of : slot, &GraphParameter::name);
  return found != graph.parameters.end() ? &*found : nullptr;
}

// Beside which an adapter can stand.
class RecordedLinear final : public RecordedModule, public AdaptableLinear {
 public:
  RecordedLinear(const std::shared_ptr<Replay>& replay, int module) : RecordedModule(replay, module), module_(module) {}

  static bool is_linear(const ModelGraph& graph, const GraphModule& about) {
    if (!about.type.ends_with("Linear") && about.type != kConv1d) return false;
    const GraphParameter* weight = parameter_at(graph, nn::join_path(about.path, "weight"));
    return weight != nullptr && graph.tensors[static_cast<std::size_t>(weight->tensor)].shape.ndim() == 2;
  }

  bool is_conv1d() const override { return about().type == kConv1d; }
  Product hand_over(LoraLinear& adapter) override {
    for (nn::ParamSlot* slot : {&adapter.weight, adapter.bias}) {
      if (slot == nullptr) continue;
      const GraphParameter* parameter = parameter_at(replay().program().graph, nn::join_path(about().path, slot->name));
      replay().set_parameter(parameter->tensor, *slot);
    }
    replay().set_module(module_, adapter);
    return [replay = shared_replay(), &calls = calls(), &about = about()](const Args& args) {
      const std::vector<Tensor> results = replay->run_alone(call_of(args, calls, about), args.tensors());
      check_model(results.size() == 1, "'{}' has {} results, and an adapter needs one", about.path, results.size());
      return results.front();
    };
  }

 private:
  static constexpr std::string_view kConv1d = "Conv1D";  // of transformers, whose weight is [in, out]

  const int module_;
};

class RecordedModel final : public RecordedModule {
 public:
  explicit RecordedModel(const std::shared_ptr<Replay>& replay) : RecordedModule(replay, 0) {}

  data::ForwardResult step(const data::Batch& batch) {
    Args args;
    for (const GraphInput& input : replay().program().graph.inputs) {
      args.named.emplace_back(input.name, batch.at(input.name));
    }
    replay().run_before(args.tensors());
    nn::ValueList results = call(std::move(args)).list();
    for (Tensor& kept : replay().take_kept()) results.emplace_back(std::move(kept));
    return {Value(std::move(results)), [this](const Value& values) {
              std::vector<Tensor> tensors;
              values.collect_tensors(tensors);
              return replay().loss_of(tensors);
            }};
  }

 protected:
  // By the names of the inputs.
  std::vector<Tensor> arguments_of(const Args& args, int call) const override {
    const GraphProgram& program = replay().program();
    std::vector<Tensor> tensors;
    for (const int tensor : program.calls[static_cast<std::size_t>(call)].arguments) {
      const auto input = std::ranges::find(program.graph.inputs, tensor, &GraphInput::tensor);
      check_model(input != program.graph.inputs.end(), "{}: the model reads a tensor that is none of its inputs",
                  program.graph.file);
      tensors.push_back(args.find(input->name).tensor());
    }
    return tensors;
  }
};

struct ModulePath {
  std::string parent;
  std::string name;
};

ModulePath split_path(const std::string& path) {
  const std::size_t dot = path.rfind('.');
  if (dot == std::string::npos) return {"", path};
  return {path.substr(0, dot), path.substr(dot + 1)};
}

class GraphTreeBuilder {
 public:
  explicit GraphTreeBuilder(std::shared_ptr<const GraphProgram> program)
      : replay_(std::make_shared<Replay>(std::move(program))), graph_(replay_->program().graph) {}

  std::shared_ptr<nn::Module> build() {
    const auto root = std::make_shared<RecordedModel>(replay_);
    modules_[""] = root;
    std::vector<nn::Module*> order{root.get()};
    for (int i = 1; i < std::ssize(graph_.modules); ++i) {
      const GraphModule& about = graph_.modules[static_cast<std::size_t>(i)];
      const auto module = RecordedLinear::is_linear(graph_, about) ? std::make_shared<RecordedLinear>(replay_, i)
                                                                   : std::make_shared<RecordedModule>(replay_, i);
      const ModulePath path = split_path(about.path);
      if (path.name.empty() || !modules_.try_emplace(about.path, module).second) {
        config_error("{}: modules[{}] has the path '{}', which is empty or given twice", graph_.file, i, about.path);
      }
      at(path.parent, about.path).add(path.name, module);
      order.push_back(module.get());
    }
    replay_->set_modules(std::move(order));
    add_parameters();
    add_buffers();
    declare_aliases(*root);
    return root;
  }

 private:
  RecordedModule& at(const std::string& path, const std::string& of) {
    const auto found = modules_.find(path);
    if (found == modules_.end()) {
      config_error("{}: '{}' lies in module '{}', which is not recorded before it", graph_.file, of, path);
    }
    return *found->second;
  }

  void add_parameters() {
    for (const GraphParameter& parameter : graph_.parameters) {
      const GraphTensor& about = graph_.tensors[static_cast<std::size_t>(parameter.tensor)];
      const ModulePath path = split_path(parameter.name);
      const DType dtype = is_floating(about.dtype) ? DType::kF32 : about.dtype;
      nn::ParamSlot& slot = at(path.parent, parameter.name).add_parameter(path.name, about.shape, dtype);
      slot.value.set_requires_grad(parameter.requires_grad && is_floating(dtype));
      replay_->set_parameter(parameter.tensor, slot);
      slots_[parameter.name] = &slot;
    }
    for (const GraphTie& tie : graph_.ties) {
      const auto found = slots_.find(tie.of);
      if (found == slots_.end())
        config_error("{}: '{}' is tied to '{}', which is no parameter", graph_.file, tie.name, tie.of);
      const ModulePath path = split_path(tie.name);
      at(path.parent, tie.name).add_tied(path.name, *found->second);
    }
  }

  void add_buffers() {
    for (const GraphBuffer& buffer : graph_.buffers) {
      const GraphTensor& about = graph_.tensors[static_cast<std::size_t>(buffer.tensor)];
      const ModulePath path = split_path(buffer.name);
      at(path.parent, buffer.name).add_buffer(path.name, about.shape, about.dtype);
    }
    // Only now: a further buffer of a module moves those before it.
    for (const GraphBuffer& buffer : graph_.buffers) {
      const ModulePath path = split_path(buffer.name);
      std::vector<nn::Buffer>& own = at(path.parent, buffer.name).own_buffers();
      replay_->set_buffer(buffer.tensor, *std::ranges::find(own, path.name, &nn::Buffer::name));
    }
  }

  void declare_aliases(nn::Module& root) {
    std::vector<nn::PathAlias> table;
    for (const auto& [alias, path] : graph_.aliases) {
      if (alias.empty()) config_error("{}: the alias of '{}' is empty", graph_.file, path);
      if (path.empty() || !modules_.contains(path))
        config_error("{}: '{}' is an alias of '{}', which is no module", graph_.file, alias, path);
      table.push_back({alias, path});
    }
    nn::declare_path_aliases(root, std::move(table));
  }

  const std::shared_ptr<Replay> replay_;
  const ModelGraph& graph_;
  std::unordered_map<std::string, std::shared_ptr<RecordedModule>> modules_;
  std::unordered_map<std::string, nn::ParamSlot*> slots_;
};

}  // namespace

std::shared_ptr<nn::Module> make_graph_model(std::shared_ptr<const GraphProgram> program) {
  return GraphTreeBuilder(std::move(program)).build();
}

data::Batch graph_batch(const GraphProgram& program) {
  data::Batch batch;
  for (const GraphInput& input : program.graph.inputs) {
    const GraphTensor& about = program.graph.tensors[static_cast<std::size_t>(input.tensor)];
    const DType dtype = is_floating(about.dtype) ? DType::kF32 : about.dtype;
    batch.values.emplace_back(input.name, Tensor::meta(about.shape, dtype, input.name));
  }
  return batch;
}

data::ForwardResult graph_forward_step(data::DataIterator& data, nn::Module& model) {
  auto* recorded = dynamic_cast<RecordedModel*>(&model);
  require(recorded != nullptr, "the forward of a recorded model was called with a {}", model.type_name());
  return recorded->step(data.next());
}

}  // namespace loom::models
