#include "models/lora/lora_linear.h"

#include "engine/core/error.h"
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/general.h"

namespace loom::models {
namespace {

using nn::Init;

nn::ParamSlot* slot_of(nn::Module& module, std::string_view name) {
  for (const auto& slot : module.own_parameters()) {
    if (slot->name == name) return slot.get();
  }
  return nullptr;
}

nn::ParamSlot& weight_of(nn::Module& base) {
  require(LoraLinear::can_adapt(base), "an adapter beside a {}", base.type_name());
  return *slot_of(base, "weight");
}

std::int64_t inputs(const nn::ParamSlot& weight, bool is_conv1d) {
  return weight.shard.global_shape[is_conv1d ? 0 : 1];
}

std::int64_t outputs(const nn::ParamSlot& weight, bool is_conv1d) {
  return weight.shard.global_shape[is_conv1d ? 1 : 0];
}

bool has_conv1d_layout(const nn::Module& base) {
  const auto* adaptable = dynamic_cast<const AdaptableLinear*>(&base);
  return adaptable != nullptr ? adaptable->is_conv1d() : dynamic_cast<const nn::Conv1D*>(&base) != nullptr;
}

// The rule for init_weights(); fill_adapters() draws uniform values, which no rule describes.
Init init_of_a(const LoraLinear::Options& options) { return Init::normal(1.0 / static_cast<double>(options.r)); }

}  // namespace

LoraMatrix::LoraMatrix(std::int64_t out, std::int64_t in, Init init)
    : weight(register_parameter("weight", {out, in}, init)) {}

nn::Value LoraMatrix::forward(const nn::Args& args) { return ops::linear(args.tensor(0), weight.value); }

bool LoraLinear::can_adapt(const nn::Module& module) {
  return dynamic_cast<const nn::Linear*>(&module) != nullptr || dynamic_cast<const nn::Conv1D*>(&module) != nullptr ||
         dynamic_cast<const nn::TiedLinear*>(&module) != nullptr ||
         dynamic_cast<const AdaptableLinear*>(&module) != nullptr;
}

LoraLinear::LoraLinear(nn::Module& base, const Options& options)
    : weight(register_tied("weight", weight_of(base))),
      options_(options),
      is_conv1d_(has_conv1d_layout(base)),
      lora_a_(register_module("lora_A",
                              std::make_shared<LoraMatrix>(options.r, inputs(weight, is_conv1d_), init_of_a(options)))),
      lora_b_(register_module("lora_B",
                              std::make_shared<LoraMatrix>(outputs(weight, is_conv1d_), options.r, Init::zeros()))) {
  if (const nn::ParamSlot* of_base = slot_of(base, "bias")) bias = &register_tied("bias", *of_base);
  if (auto* adaptable = dynamic_cast<AdaptableLinear*>(&base)) product_of_base_ = adaptable->hand_over(*this);
}

std::vector<nn::MatrixLayer::Part> LoraLinear::parts() {
  const int outputs = is_conv1d_ ? 1 : 0;
  std::vector<Part> parts{{&weight, outputs, 1 - outputs}};
  if (bias != nullptr) parts.push_back({bias, 0});
  parts.push_back({&lora_a_->weight, std::nullopt, 1});
  parts.push_back({&lora_b_->weight, 0});
  return parts;
}

Tensor LoraLinear::product(const Tensor& x, const Tensor& own_bias) const {
  return adapt(x, is_conv1d_ ? ops::linear_kn(x, weight.value, own_bias) : ops::linear(x, weight.value, own_bias));
}

Tensor LoraLinear::adapt(const Tensor& x, const Tensor& y) const {
  const std::int64_t first_input = lora_a_->weight.shard.offset[1];
  Tensor adapted = ops::dropout(x, options_.dropout, training(), {.dim = -1, .begin = first_input});
  adapted = ops::cast(adapted, lora_a_->weight.value.dtype());
  adapted = lora_b_(lora_a_(adapted)).tensor();
  adapted = ops::scale(adapted, options_.scale);
  return ops::cast(ops::add(ops::cast(y, adapted.dtype()), adapted), y.dtype());
}

nn::Value LoraLinear::forward(const nn::Args& args) {
  if (product_of_base_) return nn::ValueList{adapt(args.tensor(0), product_of_base_(args))};
  const Tensor own_bias = bias == nullptr ? Tensor{} : bias->value;
  if (!is_shared()) return product(args.tensor(0), own_bias);
  return shared_product(
      args.tensor(0), [this](const Tensor& x, const Tensor& b) { return product(x, b); }, std::nullopt, own_bias);
}

}  // namespace loom::models
