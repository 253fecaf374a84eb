#include "engine/nn/router_loss.h"

#include "engine/core/error.h"

namespace loom::nn {

void refuse_router_loss(const Module& model, std::string_view loss) {
  if (model.attachment<RouterLoss>() == nullptr) return;
  config_error(
      "{} has a load-balancing loss of its routers (output_router_logits, router_aux_loss_coef), and {} does not add it; "
      "set output_router_logits to false in its configuration",
      model.type_name(), loss);
}

}  // namespace loom::nn
