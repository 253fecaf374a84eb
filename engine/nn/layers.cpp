#include "engine/nn/layers.h"

#include "engine/core/error.h"
#include "engine/core/rank_context.h"
#include "engine/nn/functional.h"
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/general.h"
#include "engine/tensor/ops/linear_loss.h"
#include "engine/tensor/ops/padding.h"

namespace loom::nn {

Tensor MatrixLayer::shared_product(const Tensor& x,
                                   const std::function<Tensor(const Tensor& x, const Tensor& bias)>& run,
                                   const std::optional<ops::LinearMatrix>& weight, const Tensor& bias) const {
  const Tensor inside = bias_ == Bias::kOfProduct ? bias : Tensor{};
  Product product{[&run, inside](const Tensor& rows) { return run(rows, inside); }, weight};
  if (product.matrix) product.matrix->bias = inside;
  const Tensor y = run_(x, product);
  return bias.defined() && !inside.defined() ? ops::add(y, bias) : y;
}

Linear::Linear(std::int64_t in, std::int64_t out, bool with_bias, double init_std)
    : weight(register_parameter("weight", {out, in}, Init::normal(init_std))) {
  if (with_bias) bias = &register_parameter("bias", {out}, Init::zeros());
}
namespace {

Tensor loss_of(const Args& args, const Tensor& weight) {
  return ops::linear_cross_entropy(args.tensor(0), weight, args.tensor(1), args.positional[2].number());
}

}  // namespace

std::vector<MatrixLayer::Part> Linear::parts() {
  std::vector<Part> parts{{&weight, 0, 1}};
  if (bias != nullptr) parts.push_back({bias, 0});
  return parts;
}
Value Linear::forward(const Args& args) {
  if (args.positional.size() == 3) {
    require(bias == nullptr, "a linear layer with a bias has no loss of its own");
    return loss_of(args, weight.value);
  }
  const Tensor own_bias = bias == nullptr ? Tensor{} : bias->value;
  if (!is_shared()) return ops::linear(args.tensor(0), weight.value, own_bias);
  return shared_product(
      args.tensor(0), [this](const Tensor& x, const Tensor& b) { return ops::linear(x, weight.value, b); },
      ops::LinearMatrix{.weight = weight.value, .out_in = true}, own_bias);
}

Conv1D::Conv1D(std::int64_t in, std::int64_t out, double init_std)
    : weight(register_parameter("weight", {in, out}, Init::normal(init_std))),
      bias(register_parameter("bias", {out}, Init::zeros())) {}
std::vector<MatrixLayer::Part> Conv1D::parts() { return {{&weight, 1, 0}, {&bias, 0}}; }
Value Conv1D::forward(const Args& args) {
  if (!is_shared()) return ops::linear_kn(args.tensor(0), weight.value, bias.value);
  return shared_product(
      args.tensor(0), [this](const Tensor& x, const Tensor& b) { return ops::linear_kn(x, weight.value, b); },
      ops::LinearMatrix{.weight = weight.value, .out_in = false}, bias.value);
}

Embedding::Embedding(std::int64_t vocab, std::int64_t dim, double init_std)
    : weight(register_parameter("weight", {vocab, dim}, Init::normal(init_std))) {}
Value Embedding::forward(const Args& args) {
  if (lookup_) return lookup_(args.tensor(0), weight.value);
  const bool fused = RankContext::current().slot<KernelOptions>().fused_others;
  return ops::embedding(args.tensor(0), weight.value, padding_, !fused);
}

RMSNorm::RMSNorm(std::int64_t dim, double eps) : weight(register_parameter("weight", {dim}, Init::ones())), eps_(eps) {}
Value RMSNorm::forward(const Args& args) { return functional::rms_norm(args.tensor(0), weight.value, eps_); }

Value Dropout::forward(const Args& args) { return ops::dropout(args.tensor(0), p_, training()); }

LayerNorm::LayerNorm(std::int64_t dim, double eps)
    : weight(register_parameter("weight", {dim}, Init::ones())),
      bias(register_parameter("bias", {dim}, Init::zeros())),
      eps_(eps) {}
Value LayerNorm::forward(const Args& args) {
  return functional::layer_norm(args.tensor(0), weight.value, bias.value, eps_);
}

TiedLinear::TiedLinear(const ParamSlot& shared) : weight(register_tied("weight", shared)) {}
Value TiedLinear::forward(const Args& args) {
  if (args.positional.size() == 3) return loss_of(args, weight.value);
  return ops::linear(args.tensor(0), weight.value);
}

}  // namespace loom::nn
