#include "engine/nn/router_loss.h"

#include "engine/core/error.h"

namespace loom::nn {

std::shared_ptr<RouterLoss> router_loss_of(const Module& model) {
  auto losses = model.attachment<RouterLoss>();
  return losses != nullptr && (losses->in_evaluation || model.training()) ? losses : nullptr;
}

void refuse_router_loss(const Module& model, std::string_view loss) {
  const auto losses = model.attachment<RouterLoss>();
  if (losses == nullptr) return;
  if (losses->in_evaluation) {
    config_error(
        "{} has a load-balancing loss of its routers (output_router_logits, router_aux_loss_coef), and {} does not add "
        "it; set output_router_logits to false in its configuration",
        model.type_name(), loss);
  }
  config_error(
      "{} has losses of its routers (--moe-aux-loss-coeff, --moe-z-loss-coeff), and {} does not add them; "
      "remove the flags",
      model.type_name(), loss);
}

}  // namespace loom::nn
