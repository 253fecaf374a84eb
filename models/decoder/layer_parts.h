// How the layers of a decoder run, and where recompute hooks into them. Private to models.
//
// Apply    apply_layer_recompute() marks the modules; their forwards go through the functions below, which
//          behave normally without a mark, and with the grad mode off.
// Threads  the rank's host thread.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/nn/module.h"
#include "sharding/config/recomputed_module.h"

namespace loom::models {

// Marks the list of a decoder's layers, with the names of a layer's attention and MLP.
struct LayerList {
  std::string_view attention;
  std::string_view mlp;
};

// Applies a `choice` for a part of a decoder's layer, not the whole of one. ConfigError if it is selected twice.
void apply_layer_recompute(nn::Module& model, const sharding::RecomputedModule& choice);
// Whether that choice was applied.
bool has_layer_recompute(const nn::Module& model, const sharding::RecomputedModule& choice);
// Whether nothing inside the module at `path` is kept: it, a module above it, or its group of layers is
// recomputed whole.
bool is_recomputed_whole(const nn::Module& model, const std::string& path);

using TensorFn = std::function<Tensor(const Tensor&)>;
using TensorsFn = std::function<Tensor(const std::vector<Tensor>&)>;

// Runs the layers in sequence: `run` is one of them, called with all arguments, the first of which is the result of the
// layer before it.
nn::Value run_layers(nn::ModuleList& layers, nn::Args args,
                     const std::function<nn::Value(std::size_t layer, const nn::Args& args)>& run);

// `attend` of q, k and v, the core of `attention`.
Tensor core_attention(const nn::Module& attention, const std::vector<Tensor>& qkv, const TensorsFn& attend);

// consumer(activation(inputs)), of the MLP or the experts in `owner`.
Tensor activated(const nn::Module& owner, const std::vector<Tensor>& inputs, const TensorsFn& activation,
                 const TensorFn& consumer);
bool recomputes_activation(const nn::Module& owner);

// consumer(norm(x)), of a layer's norm.
Tensor normed(const nn::Module& layer, const nn::Child<nn::Module>& norm, const Tensor& x, const TensorFn& consumer);

}  // namespace loom::models
