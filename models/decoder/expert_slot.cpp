#include "models/decoder/expert_slot.h"

#include "engine/core/error.h"
#include "engine/nn/router_loss.h"
#include "engine/tensor/ops/routing.h"

namespace loom::models {
namespace {

bool asks_for_experts(const ExpertOptions& options) {
  return options.has_losses() || options.capacity_factor > 0 || options.enable_expert_bias;
}

std::vector<nn::Buffer> correction_of(nn::Module& block) {
  nn::Module* router = block.find("gate");
  return router == nullptr ? std::vector<nn::Buffer>{} : router->own_buffers();
}

void check_bias(const ExpertBlock& block) {
  if (!correction_of(*block.module).empty()) return;
  config_error(
      "--moe-router-enable-expert-bias: the router of '{}' has no correction of its choices; it is of routers with "
      "sigmoid scores (DeepSeek-V3); remove the flag",
      block.path);
}

// Megatron logs the mean over the layers, without the coefficient.
void add_losses(nn::Module& model, const ExpertOptions& options, std::size_t layers) {
  if (model.attachment<ExpertSlot>() == nullptr) {
    config_error(
        "--moe-aux-loss-coeff and --moe-z-loss-coeff: {} does not add the losses of its routers; remove the flags",
        model.type_name());
  }
  if (model.attachment<nn::RouterLoss>() != nullptr) {
    config_error(
        "--moe-aux-loss-coeff and --moe-z-loss-coeff: {} has Hugging Face's load-balancing loss already; set "
        "output_router_logits to false in its configuration, or remove the flags",
        model.type_name());
  }
  nn::RouterLoss losses{.terms = {}, .in_evaluation = false};
  const auto add = [&](const char* name, double coefficient) {
    losses.terms.push_back({name, coefficient * static_cast<double>(layers)});
  };
  if (options.balances()) add("load_balancing_loss", options.aux_loss_coeff);
  if (options.z_loss_coeff != 0) add("z_loss", options.z_loss_coeff);
  model.attach(std::make_shared<nn::RouterLoss>(std::move(losses)));
}

}  // namespace

std::vector<ExpertBlock> expert_blocks(nn::Module& model) {
  std::vector<ExpertBlock> blocks;
  for (auto& [path, module] : model.named_modules()) {
    if (module->find("experts") == nullptr) continue;
    if (auto slot = module->attachment<ExpertSlot>()) blocks.push_back({path, module, std::move(slot)});
  }
  return blocks;
}

void apply_expert_options(nn::Module& model, const ExpertOptions& options) {
  if (!asks_for_experts(options)) return;
  const std::vector<ExpertBlock> blocks = expert_blocks(model);
  if (blocks.empty()) {
    config_error(
        "--moe-aux-loss-coeff, --moe-z-loss-coeff, --moe-expert-capacity-factor and --moe-router-enable-expert-bias "
        "are of experts, and {} has none; remove them",
        model.type_name());
  }
  if (options.enable_expert_bias) {
    for (const ExpertBlock& block : blocks) check_bias(block);
  }
  if (options.has_losses()) add_losses(model, options, blocks.size());
  for (auto& [path, module] : model.named_modules()) {
    if (const auto slot = module->attachment<ExpertSlot>()) slot->options = options;
  }
}

void update_expert_bias(const ExpertBlock& block, const std::vector<double>& tokens) {
  const Tensor bias = correction_of(*block.module).front().value;
  ops::update_expert_bias(bias, Tensor::from(tokens, bias.shape(), bias.dtype()), block.slot->options.bias_update_rate);
}

}  // namespace loom::models
