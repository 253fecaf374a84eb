#include "models/stored/stored_module.h"

#include <algorithm>
#include <map>

#include "engine/core/error.h"
#include "engine/core/parse_number.h"
#include "engine/core/shown_text.h"
#include "engine/formats/safetensors/hf_weights.h"
#include "engine/tensor/autograd.h"

namespace loom::models {
namespace {

constexpr int kDeepest = 64;  // levels of modules

// Numbers by value, before words.
struct ByName {
  bool operator()(const std::string& a, const std::string& b) const {
    const auto x = parse_number<std::int64_t>(a), y = parse_number<std::int64_t>(b);
    if (x && y) return *x == *y ? a < b : *x < *y;
    return x || y ? x.has_value() : a < b;
  }
};

// The tree before its modules are made.
struct Branch {
  std::map<std::string, Branch, ByName> children;
  std::map<std::string, const io::StoredTensor*> parameters;

  bool is_list() const {
    const auto is_block = [](const auto& child) {
      return parse_number<std::int64_t>(child.first) && !child.second.children.empty();
    };
    return parameters.empty() && !children.empty() && std::ranges::all_of(children, is_block);
  }
};

[[noreturn]] void refuse(const std::filesystem::path& folder, const std::string& name, std::string_view why) {
  config_error("{}: the tensor '{}' {}; --model-weights needs names of parameters as a state dict has them",
               escaped(folder.string()), shown_text(name), why);
}

void add(Branch& root, const io::StoredTensor& tensor, const std::filesystem::path& folder) {
  Branch* at = &root;
  int depth = 0;
  std::size_t from = 0;
  for (std::size_t dot; (dot = tensor.name.find('.', from)) != std::string::npos; from = dot + 1) {
    const std::string step = tensor.name.substr(from, dot - from);
    if (step.empty()) refuse(folder, tensor.name, "has a part without a name");
    if (++depth > kDeepest) refuse(folder, tensor.name, "is more than 64 modules deep");
    if (at->parameters.contains(step)) refuse(folder, tensor.name, "is below another tensor");
    at = &at->children[step];
  }
  const std::string last = tensor.name.substr(from);
  if (last.empty()) refuse(folder, tensor.name, "has a part without a name");
  if (at->children.contains(last)) refuse(folder, tensor.name, "has other tensors below it");
  at->parameters[last] = &tensor;
}

// y = x after a use of the parameter: it has to be there now, and gets a gradient.
Tensor use(const Tensor& x, const Tensor& parameter) {
  const Tensor y = Tensor::empty(x.shape(), x.dtype());
  autograd::record("use", {x, parameter}, {parameter}, {y},
                   [](autograd::Saved saved, const autograd::Grads& grads, const autograd::Needs& needs) {
                     const Tensor& p = saved[0];
                     Tensor gradient;
                     if (needs[1]) gradient = Tensor::empty(p.shape(), p.dtype(), device::MemCategory::kGradient);
                     return autograd::Grads{grads[0], gradient};
                   });
  return y;
}

class StoredModule final : public nn::Module {
 public:
  StoredModule(const Branch& branch, bool is_root) : is_root_(is_root), is_list_(!is_root && branch.is_list()) {
    for (const auto& [name, tensor] : branch.parameters) {
      register_parameter(name, tensor->shape, nn::Init::zeros(), tensor->dtype);
    }
    for (const auto& [name, below] : branch.children) {
      register_module(name, std::make_shared<StoredModule>(below, false));
    }
  }

  std::string_view type_name() const override { return is_root_ ? "StoredModel" : "StoredModule"; }
  bool has_forward() const override { return !is_list_; }

 protected:
  nn::Value forward(const nn::Args& args) override { return run(args.tensor(0)); }

 private:
  Tensor run(Tensor x) {
    for (const auto& slot : own_parameters()) x = use(x, slot->value);
    for (const auto& [name, child] : children()) {
      auto& below = static_cast<StoredModule&>(*child);
      x = below.has_forward() ? Tensor(below(x)) : below.run(x);
    }
    return x;
  }

  const bool is_root_;
  const bool is_list_;
};

}  // namespace

std::shared_ptr<nn::Module> stored_module(const std::filesystem::path& folder) {
  const io::HfWeights weights(folder);
  Branch root;
  for (const std::string& name : weights.names()) {
    const io::StoredTensor& tensor = weights.at(name);
    if (is_floating(tensor.dtype)) add(root, tensor, folder);
  }
  if (root.children.empty() && root.parameters.empty()) {
    config_error("{}: no tensor of its files is of a floating type; --model-weights needs the parameters of a model",
                 escaped(folder.string()));
  }
  return std::make_shared<StoredModule>(root, true);
}

}  // namespace loom::models
