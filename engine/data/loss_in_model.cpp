#include "engine/data/loss_in_model.h"

#include <memory>
#include <optional>
#include <utility>

namespace loom::data {
namespace {

// What the running forward computes of the root's result.
struct LossInModel {
  LossFunc loss_func;
  std::optional<Loss> loss;
};

}  // namespace

void put_loss_in_model(nn::Module& model, nn::Module& root) {
  const auto inside = std::make_shared<LossInModel>();
  model.attach(inside);
  root.register_post_hook([inside](nn::Module&, nn::Value result) -> nn::Value {
    if (!inside->loss_func) return result;
    inside->loss = std::exchange(inside->loss_func, nullptr)(std::move(result));
    return inside->loss->loss;
  });
}

ForwardResult forward_with_loss(nn::Module& model, nn::Args args, LossFunc loss_func) {
  const auto inside = model.attachment<LossInModel>();
  if (inside == nullptr) return {model.call(std::move(args)), std::move(loss_func)};
  inside->loss_func = std::move(loss_func);
  nn::Value output = model.call(std::move(args));
  auto reports = std::exchange(inside->loss, std::nullopt).value().reports;
  return {std::move(output),
          [reports = std::move(reports)](const nn::Value& loss) { return Loss(loss.tensor(), reports); }};
}

}  // namespace loom::data
